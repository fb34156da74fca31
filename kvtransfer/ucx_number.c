/* See ucx_number.h. */
#include "kvtransfer/ucx_number.h"

#include <stdbool.h>
#include <stdlib.h>

enum {
    SKIPS_MAX = 32, /* in one call */
    JOINED_BELOW =
        65535, /* from there on UCX joins nothing: each side has a counterpart of its own */
};

struct ucx_number {
    bool known;
    uint32_t count;
    uint64_t peer_checksum;
};

/* --- the table --- */

/* The peer's slot, or the free one where it belongs. */
static struct ucx_number *slot_find(struct ucx_number *slots, uint32_t size, uint64_t peer_checksum)
{
    uint32_t at = (uint32_t)peer_checksum & (size - 1);
    while (slots[at].known && slots[at].peer_checksum != peer_checksum)
        at = (at + 1) & (size - 1);
    return &slots[at];
}

static bool numbers_grow(struct ucx_numbers *numbers)
{
    uint32_t size = numbers->size ? 2 * numbers->size : 64;
    struct ucx_number *slots = calloc(size, sizeof *slots);
    if (!slots)
        return false;
    for (uint32_t i = 0; i < numbers->size; i++)
        if (numbers->slots[i].known)
            *slot_find(slots, size, numbers->slots[i].peer_checksum) = numbers->slots[i];
    free(numbers->slots);
    numbers->slots = slots;
    numbers->size = size;
    return true;
}

static uint32_t *count_of(struct ucx_numbers *numbers, uint64_t peer_checksum)
{
    if (2 * numbers->used >= numbers->size && !numbers_grow(numbers))
        return NULL;
    struct ucx_number *slot = slot_find(numbers->slots, numbers->size, peer_checksum);
    if (!slot->known) {
        *slot = (struct ucx_number){.known = true, .peer_checksum = peer_checksum};
        numbers->used++;
    }
    return &slot->count;
}

/* --- catching up --- */

static void skip_closed(void *request, ucs_status_t status, void *user_data)
{
    ucp_request_free(request);
}

static void skip_failed(void *context, ucp_ep_h endpoint, ucs_status_t status)
{
}

/* One endpoint that nobody uses. UCX has counted it also when this fails. */
static void endpoint_skip(ucp_worker_h worker, const ucp_ep_params_t *like)
{
    ucp_ep_params_t params = *like;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = skip_closed,
    };
    ucp_ep_h endpoint;
    params.err_handler = (ucp_err_handler_t){.cb = skip_failed};
    if (ucp_ep_create(worker, &params, &endpoint) == UCS_OK)
        ucp_ep_close_nbx(endpoint, &param);
}

enum status ucx_number_take(struct ucx_numbers *numbers, uint64_t peer_checksum,
                            ucp_worker_h worker, const ucp_ep_params_t *params,
                            uint32_t *number_inout, struct err *err)
{
    uint32_t *count = count_of(numbers, peer_checksum), wanted = *number_inout;
    if (!count)
        return err_set(err, STATUS_MEMORY, "kv peer: no memory");
    for (unsigned skips = 0; *count + 1 < wanted && *count < JOINED_BELOW; skips++) {
        if (skips == SKIPS_MAX)
            return err_set(err, STATUS_AGAIN, "kv peer: met %u times, by its count %u", *count,
                           wanted);
        endpoint_skip(worker, params);
        ++*count;
    }
    *count = *count < wanted ? wanted : *count + 1;
    *number_inout = *count;
    return STATUS_OK;
}

void ucx_numbers_free(struct ucx_numbers *numbers)
{
    free(numbers->slots);
    *numbers = (struct ucx_numbers){0};
}
