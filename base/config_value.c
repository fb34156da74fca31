/* Text to value: the scalars of base/config.h. Pure; every function takes its text whole or refuses
 * it. */
#include "base/config_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"

const char *config_printable(const char *text, size_t bytes, char *buffer, size_t buffer_bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes && used + 4 < buffer_bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        buffer[used++] = (c < 0x20 || c >= 0x7f) ? '?' : (char)c;
        if (used + 4 == buffer_bytes && i + 1 < bytes) {
            memcpy(buffer + used, "...", 3);
            used += 3;
        }
    }
    buffer[used] = 0;
    return buffer;
}

static enum status refuse(struct err *err, const char *text, const char *wanted)
{
    char shown[64];
    return err_set(err, STATUS_CONFIG, "\"%s\" is not %s",
                   config_printable(text, strlen(text), shown, sizeof shown), wanted);
}

/* A decimal number without sign, exponent or spaces, as whole part and a fraction in billionths, so
 * that 1.5G and 1.5s are exact. False when there is none or it does not fit. */
static bool decimal(const char **text, uint64_t *whole_out, uint64_t *billionths_out)
{
    const char *at = *text;
    uint64_t whole = 0, fraction = 0, unit = 100000000;
    if (*at < '0' || *at > '9')
        return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (whole > (UINT64_MAX - digit) / 10)
            return false;
        whole = whole * 10 + digit;
    }
    if (*at == '.') {
        at++;
        if (*at < '0' || *at > '9')
            return false;
        for (; *at >= '0' && *at <= '9'; at++, unit /= 10)
            fraction += (uint64_t)(*at - '0') * unit;
    }
    *text = at;
    *whole_out = whole;
    *billionths_out = fraction;
    return true;
}

/* whole.billionths times `unit`; false when it does not fit. */
static bool scale(uint64_t whole, uint64_t billionths, uint64_t unit, uint64_t *out)
{
    unsigned __int128 product = (unsigned __int128)whole * unit +
                                (unsigned __int128)billionths * unit / UINT64_C(1000000000);
    if (product > INT64_MAX)
        return false;
    *out = (uint64_t)product;
    return true;
}

struct unit {
    const char *suffix;
    uint64_t factor;
};

static bool amount(const char *text, const struct unit *units, uint64_t *out)
{
    uint64_t whole, billionths;
    if (!decimal(&text, &whole, &billionths))
        return false;
    for (; units->suffix; units++)
        if (!strcasecmp(text, units->suffix))
            return scale(whole, billionths, units->factor, out);
    return false;
}

enum status config_parse_bytes(const char *text, uint64_t *bytes_out, struct err *err)
{
    static const struct unit units[] = {
        {"", 1},
        {"b", 1},
        {"k", 1 << 10},
        {"kb", 1 << 10},
        {"kib", 1 << 10},
        {"m", 1 << 20},
        {"mb", 1 << 20},
        {"mib", 1 << 20},
        {"g", 1 << 30},
        {"gb", 1 << 30},
        {"gib", 1 << 30},
        {"t", 1ull << 40},
        {"tb", 1ull << 40},
        {"tib", 1ull << 40},
        {NULL, 0},
    };
    if (!amount(text, units, bytes_out))
        return refuse(err, text, "a size in bytes, such as 512K, 64M or 8G");
    return STATUS_OK;
}

enum status config_parse_duration(const char *text, uint64_t *ns_out, struct err *err)
{
    static const struct unit units[] = {
        {"", NS_PER_S},         {"ns", 1},       {"us", NS_PER_US},
        {"ms", NS_PER_MS},      {"s", NS_PER_S}, {"m", 60 * NS_PER_S},
        {"h", 3600 * NS_PER_S}, {NULL, 0},
    };
    if (!amount(text, units, ns_out))
        return refuse(err, text, "a duration, such as 250ms, 2s or 5m");
    return STATUS_OK;
}

enum status config_parse_address(const char *text, struct config_address *address_out,
                                 struct err *err)
{
    static const char wanted[] = "an address HOST:PORT, such as 127.0.0.1:7070 or [::1]:7070";
    struct config_address address = {0};
    const char *colon = strrchr(text, ':'), *host = text, *host_end = colon;
    if (!colon)
        return refuse(err, text, wanted);
    bool bracketed = *host == '[';
    if (bracketed) {
        host++;
        host_end--;
        if (host_end < host || *host_end != ']')
            return refuse(err, text, wanted);
    }
    size_t host_bytes = (size_t)(host_end - host);
    if (host_bytes == 0 || host_bytes >= sizeof address.host)
        return refuse(err, text, wanted);
    for (const char *at = host; at < host_end; at++) {
        bool name = (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') ||
                    (*at >= 'A' && *at <= 'Z') || *at == '.' || *at == '-' || *at == '_';
        if (!name && !(bracketed && (*at == ':' || *at == '%')))
            return refuse(err, text, wanted);
    }
    memcpy(address.host, host, host_bytes);
    const char *port = colon + 1;
    uint64_t number, billionths;
    if (!decimal(&port, &number, &billionths) || *port || memchr(colon, '.', strlen(colon)))
        return refuse(err, text, wanted);
    if (number > UINT16_MAX)
        return err_set(err, STATUS_CONFIG, "port %" PRIu64 " is out of range (0 to 65535)", number);
    address.port = (uint16_t)number;
    *address_out = address;
    return STATUS_OK;
}

const char *config_format_address(const struct config_address *address, char *buffer,
                                  size_t buffer_bytes)
{
    bool bracketed = strchr(address->host, ':') != NULL;
    snprintf(buffer, buffer_bytes, "%s%s%s:%u", bracketed ? "[" : "", address->host,
             bracketed ? "]" : "", (unsigned)address->port);
    return buffer;
}

const char *config_choice(const struct config_option *option, int index, char *buffer,
                          size_t buffer_bytes)
{
    const char *at = option->choices;
    for (int i = 0; i < index && at; i++) {
        at = strchr(at, '|');
        at = at ? at + 1 : NULL;
    }
    at = at && *at == '!' ? at + 1 : at;
    snprintf(buffer, buffer_bytes, "%.*s", at ? (int)strcspn(at, "|") : 0, at ? at : "");
    return buffer;
}

const char *config_choices_built(const struct config_option *option, char *buffer,
                                 size_t buffer_bytes)
{
    size_t used = 0;
    buffer[0] = 0;
    for (const char *at = option->choices; at;) {
        size_t bytes = strcspn(at, "|");
        if (*at != '!' && used + bytes + 2 < buffer_bytes)
            used += (size_t)snprintf(buffer + used, buffer_bytes - used, "%s%.*s", used ? "|" : "",
                                     (int)bytes, at);
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
    return buffer;
}

static enum status parse_choice(const struct config_option *option, const char *text, int *out,
                                struct err *err)
{
    size_t bytes = strlen(text);
    int index = 0;
    for (const char *at = option->choices; at; index++) {
        bool unbuilt = *at == '!';
        at += unbuilt;
        size_t choice_bytes = strcspn(at, "|");
        if (choice_bytes == bytes && !memcmp(at, text, bytes)) {
            if (unbuilt)
                return refuse(err, text, "built yet");
            *out = index;
            return STATUS_OK;
        }
        at = at[choice_bytes] ? at + choice_bytes + 1 : NULL;
    }
    char built[200], wanted[256];
    snprintf(wanted, sizeof wanted, "one of %s", config_choices_built(option, built, sizeof built));
    return refuse(err, text, wanted);
}

static enum status parse_bool(const char *text, bool *out, struct err *err)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (int i = 0; i < 8; i++)
        if (!strcasecmp(text, words[i])) {
            *out = i & 1;
            return STATUS_OK;
        }
    return refuse(err, text, "true or false");
}

static enum status parse_int(const char *text, int64_t *out, struct err *err)
{
    char *end = NULL;
    const char *digits = text + (*text == '-');
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (*digits < '0' || *digits > '9' || *end)
        return refuse(err, text, "a whole number");
    if (errno == ERANGE)
        return refuse(err, text, "a number of 64 bits");
    *out = number;
    return STATUS_OK;
}

static enum status parse_float(const char *text, double *out, struct err *err)
{
    char *end = NULL;
    const char *digits = text + (*text == '-');
    bool number = (*digits >= '0' && *digits <= '9') || *digits == '.';
    double value = number ? strtod(text, &end) : 0;
    if (!number || end == digits || *end || !isfinite(value) || strpbrk(text, "xXpP"))
        return refuse(err, text, "a finite number");
    *out = value;
    return STATUS_OK;
}

static enum status within(const struct config_option *option, const char *text, double value,
                          struct err *err)
{
    if ((option->min == 0 && option->max == 0) ||
        (value >= (double)option->min && value <= (double)option->max))
        return STATUS_OK;
    const char *unit = "";
    double divisor = 1;
    if (option->type == CONFIG_DURATION) {
        unit = " seconds";
        divisor = 1e9;
    } else if (option->type == CONFIG_BYTES) {
        unit = " bytes";
    }
    char shown[64];
    return err_set(err, STATUS_CONFIG, "%s is out of range (%.15g to %.15g%s)",
                   config_printable(text, strlen(text), shown, sizeof shown),
                   (double)option->min / divisor, (double)option->max / divisor, unit);
}

enum status config_value_parse(const struct config_option *option, const char *text,
                               struct config_value *value_out, struct err *err)
{
    struct config_value value = {0};
    enum status status = STATUS_OK;
    switch (option->type) {
    case CONFIG_STRING:
    case CONFIG_STRINGS:
        break;
    case CONFIG_INT:
        status = parse_int(text, &value.integer, err);
        if (status == STATUS_OK && (option->min || option->max) &&
            (value.integer < option->min || value.integer > option->max))
            status = err_set(err, STATUS_CONFIG,
                             "%" PRId64 " is out of range (%" PRId64 " to %" PRId64 ")",
                             value.integer, option->min, option->max);
        break;
    case CONFIG_FLOAT:
        status = parse_float(text, &value.real, err);
        if (status == STATUS_OK)
            status = within(option, text, value.real, err);
        break;
    case CONFIG_BYTES:
        status = config_parse_bytes(text, &value.amount, err);
        if (status == STATUS_OK)
            status = within(option, text, (double)value.amount, err);
        break;
    case CONFIG_DURATION:
        status = config_parse_duration(text, &value.amount, err);
        if (status == STATUS_OK)
            status = within(option, text, (double)value.amount, err);
        break;
    case CONFIG_BOOL:
        status = parse_bool(text, &value.truth, err);
        break;
    case CONFIG_ENUM:
        status = parse_choice(option, text, &value.choice, err);
        break;
    case CONFIG_ADDRESS:
        status = config_parse_address(text, &value.address, err);
        break;
    }
    if (status == STATUS_OK)
        *value_out = value;
    return status;
}
