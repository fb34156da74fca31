/* grpc.health.v1.Health: one small table of services, and the watchers of each.
 *
 * A watcher that is slow gets the newest state once its last message was taken; states in between are skipped, as the
 * protocol allows.
 *
 * Owner: the loop thread. */
#include "proto/rpc/health.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/grpc/health/v1/health.pb-c.h"
#include "proto/wire.h"

enum { SERVICE_NAME_BYTES_MAX = 256, WATCHES_MAX = 256 };

struct service {
    struct service *next;
    bool serving;
    char name[];
};

struct watch {
    struct list link;
    struct rpc_call *call;
    int told; /* the status last sent; -1: none */
    char name[];
};

struct rpc_health {
    struct service *services;
    struct list watches;
    size_t watch_count;
    bool ending;
};

typedef Grpc__Health__V1__HealthCheckRequest check_request;

static struct service *service_find(const struct rpc_health *health, const char *name)
{
    for (struct service *service = health->services; service; service = service->next)
        if (strcmp(service->name, name) == 0)
            return service;
    return NULL;
}

static void response_fill(Grpc__Health__V1__HealthCheckResponse *response,
                          const struct service *service)
{
    grpc__health__v1__health_check_response__init(response);
    response->status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN;
    if (service)
        response->status =
            service->serving ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                             : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
}

/* The request of either method; NULL when it was malformed, and the call is finished then. */
static check_request *request_read(struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct err err = ERR_INIT;
    ProtobufCMessage *message;
    if (wire_unpack(&grpc__health__v1__health_check_request__descriptor, data, bytes, &message,
                    &err)) {
        rpc_call_finish_err(call, &err);
        return NULL;
    }
    check_request *request = (check_request *)message;
    if (strlen(request->service) > SERVICE_NAME_BYTES_MAX) {
        rpc_call_finish(call, GRPC_CODE_INVALID_ARGUMENT, "service: longer than 256 bytes", NULL,
                        0);
        protobuf_c_message_free_unpacked(message, NULL);
        return NULL;
    }
    return request;
}

/* --- Check --- */

static void check_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct rpc_health *health = context;
    check_request *request = request_read(call, data, bytes);
    if (!request)
        return;
    const struct service *service = service_find(health, request->service);
    Grpc__Health__V1__HealthCheckResponse response;
    response_fill(&response, service);
    if (service)
        rpc_call_reply(call, &response.base);
    else
        rpc_call_finish(call, GRPC_CODE_NOT_FOUND, "unknown service", NULL, 0);
    protobuf_c_message_free_unpacked(&request->base, NULL);
}

/* --- Watch --- */

static void watch_tell(struct rpc_health *health, struct watch *watch)
{
    Grpc__Health__V1__HealthCheckResponse response;
    response_fill(&response, service_find(health, watch->name));
    if (watch->told == (int)response.status || !rpc_call_writable(watch->call))
        return; /* when it cannot be sent now, on_writable comes back here */
    if (!rpc_call_send_message(watch->call, &response.base))
        watch->told = (int)response.status;
}

static void watch_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct rpc_health *health = context;
    check_request *request = request_read(call, data, bytes);
    if (!request)
        return;
    size_t name_bytes = strlen(request->service) + 1;
    struct watch *watch = NULL;
    if (health->ending)
        rpc_call_finish(call, GRPC_CODE_UNAVAILABLE, "draining", NULL, 0);
    else if (health->watch_count >= WATCHES_MAX || !(watch = malloc(sizeof *watch + name_bytes)))
        rpc_call_finish(call, GRPC_CODE_RESOURCE_EXHAUSTED, "too many watches (256)", NULL, 0);
    if (watch) {
        watch->call = call;
        watch->told = -1;
        memcpy(watch->name, request->service, name_bytes);
        list_push_back(&health->watches, &watch->link);
        health->watch_count++;
        rpc_call_set_data(call, watch);
        watch_tell(health, watch);
    }
    protobuf_c_message_free_unpacked(&request->base, NULL);
}

static void watch_writable(void *context, struct rpc_call *call)
{
    if (rpc_call_data(call))
        watch_tell(context, rpc_call_data(call));
}

static void watch_closed(void *context, struct rpc_call *call, const struct rpc_end *end)
{
    (void)end;
    struct rpc_health *health = context;
    struct watch *watch = rpc_call_data(call);
    if (!watch)
        return;
    list_remove(&watch->link);
    health->watch_count--;
    free(watch);
}

static const struct rpc_handler check_handler = {.kind = RPC_UNARY, .on_message = check_message};
static const struct rpc_handler watch_handler = {.kind = RPC_SERVER_STREAM,
                                                 .on_message = watch_message,
                                                 .on_writable = watch_writable,
                                                 .on_closed = watch_closed};

/* --- the interface --- */

enum status rpc_health_create(struct rpc_server *server, struct rpc_health **health_out,
                              struct err *err)
{
    struct rpc_health *health = calloc(1, sizeof *health);
    if (!health)
        return err_set(err, STATUS_MEMORY, "health service: no memory");
    list_init(&health->watches);
    rpc_health_set(health, "", false);
    enum status status =
        rpc_server_add(server, "/grpc.health.v1.Health/Check", &check_handler, health, err);
    if (!status)
        status =
            rpc_server_add(server, "/grpc.health.v1.Health/Watch", &watch_handler, health, err);
    if (status) {
        rpc_health_destroy(health);
        return status;
    }
    *health_out = health;
    return STATUS_OK;
}

void rpc_health_set(struct rpc_health *health, const char *name, bool serving)
{
    struct service *service = service_find(health, name);
    if (!service) {
        size_t bytes = strlen(name) + 1;
        service = malloc(sizeof *service + bytes);
        assert(service); /* a few names at start */
        memcpy(service->name, name, bytes);
        service->next = health->services;
        health->services = service;
    }
    service->serving = serving;
    list_for_each(it, &health->watches)
    {
        struct watch *watch = container_of(it, struct watch, link);
        if (strcmp(watch->name, name) == 0)
            watch_tell(health, watch);
    }
}

void rpc_health_end_watches(struct rpc_health *health)
{
    health->ending = true;
    list_for_each(it, &health->watches) rpc_call_finish(container_of(it, struct watch, link)->call,
                                                        GRPC_CODE_UNAVAILABLE, "draining", NULL, 0);
}

void rpc_health_destroy(struct rpc_health *health)
{
    if (!health)
        return;
    assert(list_empty(&health->watches));
    for (struct service *service = health->services, *next; service; service = next) {
        next = service->next;
        free(service);
    }
    free(health);
}
