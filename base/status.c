/* The status table's look-ups. Pure. */
#include "base/status.h"

static const struct {
    const char *text, *label;
    enum grpc_code grpc;
    enum status_scope scope;
    bool retry;
} rows[STATUS_COUNT] = {
#define X(name, scope, grpc, retry, text, label) \
    [STATUS_##name] = {text, label, GRPC_CODE_##grpc, SCOPE_##scope, retry},
    STATUS_TABLE(X)
#undef X
};

const char *status_text(enum status status)
{
    return rows[status].text;
}

const char *status_label(enum status status)
{
    return rows[status].label;
}

enum grpc_code status_grpc(enum status status)
{
    return rows[status].grpc;
}

enum status_scope status_scope(enum status status)
{
    return rows[status].scope;
}

bool status_retryable(enum status status)
{
    return rows[status].retry;
}
