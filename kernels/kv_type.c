/* The KV types: names and sizes. Apart from common.c, so that who only asks for a size does not link a backend. See
 * backend.h. */
#include "kernels/backend.h"

#include <string.h>

static const char *const kv_type_names[KERN_KV_TYPE_COUNT] = {"f32", "f16", "int8"};

const char *kern_kv_type_name(enum kern_kv_type type)
{
    return kv_type_names[type];
}

bool kern_kv_type_parse(const char *name, enum kern_kv_type *type_out)
{
    for (int i = 0; i < KERN_KV_TYPE_COUNT; i++)
        if (strcmp(name, kv_type_names[i]) == 0) {
            *type_out = (enum kern_kv_type)i;
            return true;
        }
    return false;
}

uint32_t kern_kv_head_bytes(enum kern_kv_type type, uint32_t head_dim)
{
    switch (type) {
    case KERN_KV_F16:
        return 2 * head_dim;
    case KERN_KV_INT8:
        return head_dim + 2; /* a bfloat16 scale */
    default:
        return 4 * head_dim;
    }
}
