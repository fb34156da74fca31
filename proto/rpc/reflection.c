/* Server reflection: one bidirectional stream; every question gets one answer, in order.
 *
 * v1 and v1alpha differ in their package only, so their messages have the same form on the wire, and both are read and
 * written here with v1's code.
 *
 * A client is answered before its next question is read, so a stream holds one answer at most.
 *
 * Owner: the loop thread. */
#include "proto/rpc/reflection.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/grpc/reflection/v1/reflection.pb-c.h"
#include "proto/rpc/descriptors.h"
#include "proto/rpc/internal.h"
#include "proto/wire.h"

enum { FILES_MAX = 32, SERVICES_MAX = 32, SERVICE_BYTES_MAX = 128 };

struct rpc_reflection {
    struct rpc_server *server;
};

typedef Grpc__Reflection__V1__ServerReflectionRequest question_type;
typedef Grpc__Reflection__V1__ServerReflectionResponse answer_type;

/* --- look-up --- */

static int file_by_name(const char *name)
{
    for (size_t i = 0; i < descriptor_file_count; i++)
        if (strcmp(descriptor_files[i].name, name) == 0)
            return (int)i;
    return -1;
}

static int symbol_compare(const void *key, const void *entry)
{
    return strcmp(key, ((const struct descriptor_symbol *)entry)->name);
}

static int file_by_symbol(const char *symbol)
{
    const struct descriptor_symbol *found =
        bsearch(symbol, descriptor_symbols, descriptor_symbol_count, sizeof *descriptor_symbols,
                symbol_compare);
    return found ? found->file : -1;
}

/* The file and, once each, everything that it imports. */
static size_t files_collect(int file, int *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (files[i] == file)
            return count;
    assert(count < FILES_MAX); /* the build's own files */
    files[count++] = file;
    for (const int *import = descriptor_files[file].imports; *import >= 0; import++)
        count = files_collect(*import, files, count);
    return count;
}

/* The service names of the registered paths, once each. */
static size_t services_collect(const struct rpc_server *server,
                               char names[SERVICES_MAX][SERVICE_BYTES_MAX])
{
    size_t count = 0;
    for (size_t i = 0; i < rpc_server_method_count(server); i++) {
        const char *name = rpc_server_method_path(server, i) + 1;
        size_t bytes = strcspn(name, "/");
        assert(bytes < SERVICE_BYTES_MAX);
        bool known = false;
        for (size_t j = 0; !known && j < count; j++)
            known = strlen(names[j]) == bytes && memcmp(names[j], name, bytes) == 0;
        if (known)
            continue;
        assert(count < SERVICES_MAX);
        memcpy(names[count], name, bytes);
        names[count++][bytes] = '\0';
    }
    return count;
}

/* --- answers: each fills the response and sends it while what it points to is still there --- */

static void answer_error(struct rpc_call *call, answer_type *answer, enum grpc_code code,
                         const char *message)
{
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = (int32_t)code;
    error.error_message = (char *)message;
    answer->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    answer->error_response = &error;
    rpc_call_send_message(call, &answer->base);
}

static void answer_file(struct rpc_call *call, answer_type *answer, int file)
{
    if (file < 0) {
        answer_error(call, answer, GRPC_CODE_NOT_FOUND, "no such file or symbol");
        return;
    }
    int files[FILES_MAX];
    size_t count = files_collect(file, files, 0);
    ProtobufCBinaryData data[FILES_MAX];
    for (size_t i = 0; i < count; i++)
        data[i] = (ProtobufCBinaryData){.len = descriptor_files[files[i]].bytes,
                                        .data = (uint8_t *)descriptor_files[files[i]].data};
    Grpc__Reflection__V1__FileDescriptorResponse response =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    response.n_file_descriptor_proto = count;
    response.file_descriptor_proto = data;
    answer->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    answer->file_descriptor_response = &response;
    rpc_call_send_message(call, &answer->base);
}

static void answer_services(struct rpc_call *call, answer_type *answer,
                            const struct rpc_server *server)
{
    char names[SERVICES_MAX][SERVICE_BYTES_MAX];
    size_t count = services_collect(server, names);
    Grpc__Reflection__V1__ServiceResponse services[SERVICES_MAX], *list[SERVICES_MAX];
    for (size_t i = 0; i < count; i++) {
        grpc__reflection__v1__service_response__init(&services[i]);
        services[i].name = names[i];
        list[i] = &services[i];
    }
    Grpc__Reflection__V1__ListServiceResponse response =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    response.n_service = count;
    response.service = list;
    answer->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    answer->list_services_response = &response;
    rpc_call_send_message(call, &answer->base);
}

static void question_answer(const struct rpc_reflection *reflection, struct rpc_call *call,
                            question_type *question)
{
    answer_type answer = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    answer.valid_host = question->host;
    answer.original_request = question;
    switch (question->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(call, &answer, reflection->server);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        answer_file(call, &answer, file_by_name(question->file_by_filename));
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        answer_file(call, &answer, file_by_symbol(question->file_containing_symbol));
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        answer_error(call, &answer, GRPC_CODE_NOT_FOUND, "proto3 files have no extensions");
        break;
    default:
        answer_error(call, &answer, GRPC_CODE_INVALID_ARGUMENT, "message_request: not set");
        break;
    }
}

/* --- the stream --- */

static void stream_open(void *context, struct rpc_call *call)
{
    (void)context;
    rpc_call_read(call);
}

static void stream_message(void *context, struct rpc_call *call, const uint8_t *data, size_t bytes)
{
    struct err err = ERR_INIT;
    ProtobufCMessage *message;
    if (wire_unpack(&grpc__reflection__v1__server_reflection_request__descriptor, data, bytes,
                    &message, &err)) {
        rpc_call_finish_err(call, &err);
        return;
    }
    question_answer(context, call, (question_type *)message);
    protobuf_c_message_free_unpacked(message, NULL);
}

static void stream_writable(void *context, struct rpc_call *call)
{
    (void)context;
    rpc_call_read(call);
}

static void stream_half_close(void *context, struct rpc_call *call)
{
    (void)context;
    rpc_call_finish(call, GRPC_CODE_OK, NULL, NULL, 0);
}

static const struct rpc_handler stream_handler = {.kind = RPC_BIDI,
                                                  .on_open = stream_open,
                                                  .on_message = stream_message,
                                                  .on_half_close = stream_half_close,
                                                  .on_writable = stream_writable};

enum status rpc_reflection_create(struct rpc_server *server, struct rpc_reflection **reflection_out,
                                  struct err *err)
{
    struct rpc_reflection *reflection = calloc(1, sizeof *reflection);
    if (!reflection)
        return err_set(err, STATUS_MEMORY, "reflection service: no memory");
    reflection->server = server;
    static const char *const paths[] = {
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    };
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        enum status status = rpc_server_add(server, paths[i], &stream_handler, reflection, err);
        if (status) {
            rpc_reflection_destroy(reflection);
            return status;
        }
    }
    *reflection_out = reflection;
    return STATUS_OK;
}

void rpc_reflection_destroy(struct rpc_reflection *reflection)
{
    free(reflection);
}
