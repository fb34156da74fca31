/* Devices, the thread pool, streams and events; what the opaque variant adds. */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "kernels/backend.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/peaks.h"
#include "tests/test.h"

static struct kern_device *device_open(const char *name, unsigned threads)
{
    const struct kern_backend *backend;
    struct kern_device *device;
    struct err err = ERR_INIT;
    CHECK_INT(kern_backend_find(name, &backend, &err), STATUS_OK);
    struct kern_device_options options = {.threads = threads};
    CHECK_INT(backend->open(&options, &device, &err), STATUS_OK);
    return device;
}

static void count_item(void *context, uint32_t item, unsigned worker)
{
    _Atomic uint32_t *counts = context;
    (void)worker;
    atomic_fetch_add(&counts[item], 1);
}

TEST(backend, pool_does_each_item_once)
{
    static _Atomic uint32_t counts[257];
    for (unsigned threads = 1; threads <= 4; threads++) {
        struct cpu_pool *pool;
        CHECK_INT(cpu_pool_create(threads, NULL, &pool), STATUS_OK);
        for (uint32_t round = 0; round < 3000; round++) {
            uint32_t items = round % 257;
            for (uint32_t i = 0; i < items; i++)
                atomic_store(&counts[i], 0);
            cpu_pool_run(pool, items, count_item, counts);
            for (uint32_t i = 0; i < items; i++)
                CHECK_INT(atomic_load(&counts[i]), 1);
            if (round % 500 == 0)
                usleep(2000); /* the workers fall asleep */
        }
        cpu_pool_destroy(pool);
    }
}

/* Resident bytes of a mapping, and none of it before. */
static size_t resident(void *data, size_t bytes)
{
    static unsigned char pages[8192];
    size_t count = 0, unit = (size_t)sysconf(_SC_PAGESIZE);
    CHECK(bytes / unit <= sizeof pages);
    CHECK_INT(mincore(data, bytes, pages), 0);
    for (size_t i = 0; i < bytes / unit; i++)
        count += pages[i] & 1;
    return count * unit;
}

TEST(backend, memory_is_made_real_ahead_and_stays_what_it_was)
{
    if (test_emulated())
        TEST_SKIP("an emulator does not say which pages are real");
    const size_t bytes = 24 << 20;
    uint8_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(data != MAP_FAILED);
    data[bytes - 1] = 7; /* somebody was faster */
    size_t before = resident(data, bytes);
    struct cpu_prefault prefault = {0};
    cpu_prefault_begin(&prefault, data, bytes);
    for (unsigned i = 0; atomic_load(&prefault.done_bytes) < bytes && i < 5000; i++)
        usleep(2000);
    cpu_prefault_end(&prefault);
    size_t done = atomic_load(&prefault.done_bytes);
    CHECK(done == bytes || done == 0); /* 0: a kernel that cannot, or no memory to spare */
    CHECK(done == 0 || resident(data, bytes) == bytes);
    CHECK(resident(data, bytes) >= before);
    CHECK_INT(data[bytes - 1], 7);
    for (size_t i = 0; i < bytes - 1; i += 4096)
        CHECK_INT(data[i], 0);
    munmap(data, bytes);
}

TEST(backend, making_memory_real_ends_when_told)
{
    const size_t bytes = 1 << 30;
    uint8_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(data != MAP_FAILED);
    struct cpu_prefault prefault = {0};
    cpu_prefault_end(&prefault); /* never begun */
    cpu_prefault_begin(&prefault, data, bytes);
    cpu_prefault_end(&prefault);
    size_t done = atomic_load(&prefault.done_bytes);
    CHECK(done < bytes);
    usleep(20000);
    CHECK_INT(atomic_load(&prefault.done_bytes), done);
    munmap(data, bytes);
}

/* --- linear of several matrices at once --- */

enum { PARTS_ROWS = 200, PARTS_IN = 64 };
static const uint32_t part_outs[KERN_LINEAR_PARTS] = {75, 32, 91}; /* 5, 2 and 6 panels */

/* The three parts' outputs, one after the other, of `rows` rows, in one operation or in three. */
static void parts_compute(unsigned threads, bool together, uint32_t rows, float *out)
{
    struct kern_device *device = device_open("cpu", threads);
    const struct kern_ops *ops = device->ops;
    static float x[PARTS_ROWS * PARTS_IN], w[100 * PARTS_IN];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)((int)(i * 37 % 101) - 50) / 16.0f;
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        w[i] = (float)((int)(i * 53 % 97) - 48) / 64.0f;
    struct kern_stream_options options = {
        .commands_max = 16, .compute = true, .vocab = 16, .head_dim = 32};
    struct kern_step_caps caps = {.rows_max = PARTS_ROWS, .seqs_max = 1, .samples_max = 1};
    struct kern_stream *stream;
    struct kern_step *step;
    struct kern_buffer *in;
    struct kern_acts *acts;
    struct kern_linear_part parts[KERN_LINEAR_PARTS];
    struct kern_weights *weights[KERN_LINEAR_PARTS];
    CHECK_INT(ops->stream_create(device, &options, &stream), STATUS_OK);
    CHECK_INT(ops->step_create(device, &caps, 1, &step), STATUS_OK);
    CHECK_INT(ops->buffer_create(device, sizeof x, &in), STATUS_OK);
    CHECK_INT(ops->acts_create(device, PARTS_ROWS, PARTS_IN, &acts), STATUS_OK);
    step->row_count = rows;
    for (int i = 0; i < KERN_LINEAR_PARTS; i++) {
        struct err err = ERR_INIT;
        struct kern_weights_desc desc = {.name = "part",
                                         .type = KERN_WEIGHT_F32,
                                         .data = w + i * PARTS_IN,
                                         .rows = part_outs[i],
                                         .columns = PARTS_IN};
        CHECK_INT(ops->weights_create(device, &desc, &weights[i], &err), STATUS_OK);
        parts[i].weights = weights[i];
        CHECK_INT(
            ops->buffer_create(device, part_outs[i] * PARTS_ROWS * sizeof(float), &parts[i].out),
            STATUS_OK);
    }
    ops->upload(stream, in, 0, x, sizeof x);
    ops->acts_from(stream, step, in, acts);
    if (together)
        ops->linear(stream, step, acts, false, parts, KERN_LINEAR_PARTS);
    for (int i = 0; i < KERN_LINEAR_PARTS; i++) {
        if (!together)
            ops->linear(stream, step, acts, false, &parts[i], 1);
        ops->download(stream, parts[i].out, 0, out, part_outs[i] * rows * sizeof(float));
        out += part_outs[i] * rows;
    }
    ops->stream_sync(stream);
    ops->stream_destroy(stream);
    for (int i = 0; i < KERN_LINEAR_PARTS; i++) {
        ops->buffer_destroy(parts[i].out);
        ops->weights_destroy(weights[i]);
    }
    ops->acts_destroy(acts);
    ops->buffer_destroy(in);
    ops->step_destroy(step);
    ops->device_close(device);
}

TEST(backend, matrices_of_the_same_activations_may_be_one_operation)
{
    static float apart[198 * PARTS_ROWS], together[198 * PARTS_ROWS];
    static const uint32_t rows[] = {1, 3, PARTS_ROWS};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        parts_compute(1, false, rows[i], apart);
        for (unsigned threads = 1; threads <= 3; threads++) {
            memset(together, 0xff, sizeof together);
            parts_compute(threads, true, rows[i], together);
            CHECK_INT(memcmp(apart, together, 198 * rows[i] * sizeof(float)), 0);
        }
    }
}

TEST(backend, lists_of_processors)
{
    static const struct {
        const char *text;
        unsigned count; /* or 0 and why */
        const char *why;
    } cases[] = {
        {"", 0, NULL},
        {"0", 1, NULL},
        {"0,", 0, "is no list"},
        {",0", 0, "is no list"},
        {"0-", 0, "is no list"},
        {"1-0", 0, "is no list"},
        {"0 ", 0, "is no list"},
        {"-1", 0, "is no list"},
        {"1024", 0, "is no list"},
        {"99999999999999999999", 0, "is no list"},
        {"0,0", 0, "named twice"},
        {"0,1023", 0, "may run on"},
        {"0-1023", 0, "may run on"},
    };
    static struct cpu_list list;
    cpu_set_t before, mine;
    CHECK_INT(sched_getaffinity(0, sizeof before, &before), 0);
    if (!CPU_ISSET(0, &before) || CPU_ISSET(1023, &before))
        TEST_SKIP("another machine than the cases are for");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = ERR_INIT;
        enum status status = cpu_list_parse(cases[i].text, &list, &err);
        CHECK_INT(status, cases[i].why ? STATUS_CONFIG : STATUS_OK);
        if (cases[i].why)
            CHECK_MSG(strstr(err.message, cases[i].why) && strstr(err.message, "cpus: "), "%s: %s",
                      cases[i].text, err.message);
        else
            CHECK_INT(list.count, cases[i].count);
    }
    CHECK_INT(cpu_list_parse(NULL, &list, NULL), STATUS_OK);
    CHECK_INT(list.count, 0);
    cpu_list_pin(&list, 5); /* an empty list pins nobody */
    CHECK_INT(sched_getaffinity(0, sizeof mine, &mine), 0);
    CHECK(CPU_EQUAL(&mine, &before));
    CHECK_INT(cpu_list_parse("0", &list, NULL), STATUS_OK);
    cpu_list_pin(&list, 0);
    CHECK_INT(sched_getaffinity(0, sizeof mine, &mine), 0);
    CHECK(CPU_COUNT(&mine) == 1 && CPU_ISSET(0, &mine));
    CHECK_INT(sched_setaffinity(0, sizeof before, &before), 0);

    struct kern_device *device;
    struct err err = ERR_INIT;
    struct kern_device_options options = {.cpus = "0", .compute = KERN_COMPUTE_INT8};
    CHECK_INT(kern_backend_cpu.open(&options, &device, &err), STATUS_OK);
    CHECK_INT(device->ops->device_threads(device), 1); /* as many as the list names */
    device->ops->device_close(device);
    options.threads = 2;
    CHECK_INT(kern_backend_cpu.open(&options, &device, &err), STATUS_CONFIG);
    CHECK(strstr(err.message, "threads: 2"));
}

TEST(backend, a_store_gives_zeros_that_nobody_else_has)
{
    enum { PIECES = 60 };
    struct cpu_store store = {0};
    uint8_t *pieces[PIECES];
    size_t sizes[PIECES];
    for (size_t i = 0; i < PIECES; i++) {
        sizes[i] = i == 30 ? (size_t)70 << 20 : 1 + i * i * 997; /* one is larger than a chunk */
        pieces[i] = cpu_store_take(&store, sizes[i]);
        CHECK(pieces[i] != NULL && (uintptr_t)pieces[i] % 64 == 0);
        CHECK(pieces[i][0] == 0 && pieces[i][sizes[i] - 1] == 0);
        memset(pieces[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < PIECES; i++)
        CHECK(pieces[i][0] == i + 1 && pieces[i][sizes[i] / 2] == i + 1 &&
              pieces[i][sizes[i] - 1] == i + 1);
    CHECK(cpu_store_take(&store, SIZE_MAX) == NULL);
    CHECK(cpu_store_take(&store, SIZE_MAX / 4) == NULL);
    cpu_store_finish(&store);
    CHECK(cpu_store_take(&store, 1) != NULL); /* empty, and as good as new */
    cpu_store_finish(&store);
}

struct firing {
    _Atomic int count;
    int order;
};
static _Atomic int firings;

static void fire(void *context)
{
    struct firing *firing = context;
    firing->order = atomic_fetch_add(&firings, 1);
    atomic_fetch_add(&firing->count, 1);
}

TEST(backend, events_fire_once_in_order)
{
    static const char *const names[] = {"cpu", "opaque"};
    for (int n = 0; n < 2; n++) {
        struct kern_device *device = device_open(names[n], 2);
        const struct kern_ops *ops = device->ops;
        struct kern_stream *stream;
        struct kern_stream_options options = {.commands_max = 64};
        CHECK_INT(ops->stream_create(device, &options, &stream), STATUS_OK);
        struct kern_buffer *buffer;
        CHECK_INT(ops->buffer_create(device, 1 << 16, &buffer), STATUS_OK);
        struct kern_event *events[3];
        struct firing firing[3];
        for (int i = 0; i < 3; i++)
            CHECK_INT(ops->event_create(device, &events[i]), STATUS_OK);
        static uint8_t up[1 << 16], down[1 << 16];
        for (int round = 0; round < 200; round++) {
            memset(firing, 0, sizeof firing);
            atomic_store(&firings, 0);
            memset(up, round, sizeof up);
            memset(down, 0xee, sizeof down);
            ops->upload(stream, buffer, 0, up, sizeof up);
            ops->event_record(stream, events[0]);
            ops->download(stream, buffer, 0, down, sizeof down);
            ops->event_record(stream, events[1]);
            ops->event_record(stream, events[2]);
            if (n == 1 && round == 0) { /* lazy: nothing runs until somebody asks */
                usleep(20000);
                CHECK(!ops->event_query(events[0]) && !ops->event_query(events[2]));
                CHECK_INT(down[0], 0xee);
            }
            for (int i = 0; i < 3; i++)
                ops->event_arm(events[i], fire, &firing[i]);
            ops->event_wait(events[2]);
            ops->stream_sync(stream);
            for (int i = 0; i < 3; i++) {
                CHECK_INT(atomic_load(&firing[i].count), 1);
                CHECK_INT(firing[i].order, i);
            }
            CHECK(memcmp(up, down, sizeof up) == 0);
        }
        ops->stream_destroy(stream);
        for (int i = 0; i < 3; i++)
            ops->event_destroy(events[i]);
        ops->buffer_destroy(buffer);
        ops->device_close(device);
    }
}

/* True when reading the address kills a process. */
static bool read_is_fatal(const volatile uint8_t *address)
{
    enum { READABLE = 42 };
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(5);
        (void)freopen("/dev/null", "w", stderr);
        uint8_t value = *address;
        (void)value;
        _exit(READABLE);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status) != READABLE; /* a sanitizer exits by itself */
}

TEST(backend, opaque_memory_is_unreadable)
{
    struct kern_device *plain = device_open("cpu", 1), *opaque = device_open("opaque", 1);
    struct kern_kv_desc desc = {.layers = 2,
                                .kv_heads = 1,
                                .head_dim = 32,
                                .page_tokens = 16,
                                .page_count = 4,
                                .type = KERN_KV_F16};
    struct kern_piece piece = {1, 0, 2};
    struct kern_kv *kv;
    CHECK_INT(plain->ops->kv_create(plain, &desc, &kv), STATUS_OK);
    CHECK(plain->ops->kv_piece_host(kv, piece) != NULL);
    CHECK(!read_is_fatal(plain->ops->kv_piece_host(kv, piece)));
    plain->ops->kv_destroy(kv);
    plain->ops->device_close(plain);

    const struct kern_ops *ops = opaque->ops;
    CHECK_INT(ops->kv_create(opaque, &desc, &kv), STATUS_OK);
    CHECK(ops->kv_piece_host(kv, piece) == NULL);
    struct kern_stream *stream;
    struct kern_stream_options options = {.commands_max = 8};
    CHECK_INT(ops->stream_create(opaque, &options, &stream), STATUS_OK);
    CHECK(read_is_fatal(kv->region.data));
    static uint8_t host[2 * 2 * 2 * 32 * 16];
    uint64_t sums[3];
    memset(host, 0x5a, sizeof host);
    CHECK_INT(ops->kv_layer_bytes(kv) * 2, sizeof host);
    ops->kv_copy(stream, KERN_COPY_IMPORT, kv, piece, host, &sums[0]);
    ops->kv_copy(stream, KERN_COPY_SUM, kv, piece, NULL, &sums[1]);
    memset(host, 0x5a, sizeof host);
    ops->stream_sync(stream);
    memset(host, 0, sizeof host);
    ops->kv_copy(stream, KERN_COPY_EXPORT, kv, piece, host, &sums[2]);
    ops->stream_sync(stream);
    CHECK(sums[0] == sums[1] && sums[1] == sums[2]);
    CHECK_INT(host[77], 0x5a);
    for (int i = 0; i < 200 && !read_is_fatal(kv->region.data); i++)
        usleep(1000); /* the stream closes the memory when it comes to rest */
    CHECK(read_is_fatal(kv->region.data));
    ops->stream_destroy(stream);
    ops->kv_destroy(kv);
    ops->device_close(opaque);
}

TEST(backend, cancels_measure_their_lag)
{
    struct kern_cancels *cancels;
    CHECK_INT(kern_cancels_create(4, &cancels), STATUS_OK);
    CHECK(!kern_cancels_look(cancels, 2));
    atomic_store(&cancels->layers_begun, 10);
    kern_cancels_set(cancels, 2);
    atomic_store(&cancels->layers_begun, 13);
    kern_cancels_set(cancels, 2); /* the first one counts */
    CHECK(kern_cancels_look(cancels, 2));
    CHECK(kern_cancels_acked(cancels, 2));
    CHECK_INT(atomic_load(&cancels->lag_max), 3);
    atomic_store(&cancels->layers_begun, 20);
    CHECK(kern_cancels_look(cancels, 2)); /* acknowledged already: the lag stands */
    CHECK_INT(atomic_load(&cancels->lag_max), 3);
    kern_cancels_reset(cancels, 2);
    CHECK(!kern_cancels_look(cancels, 2));
    kern_cancels_destroy(cancels);
}

struct looking {
    struct kern_cancels *cancels;
    _Atomic bool over;
};

static void *look_on(void *context)
{
    struct looking *looking = context;
    while (!atomic_load(&looking->over))
        for (uint32_t slot = 0; slot < 4; slot++)
            kern_cancels_look(looking->cancels, slot);
    return NULL;
}

/* A backend looks at all slots, also at one that is just given to a new sequence: what it saw of the old one's cancel must not
 * become an acknowledgement of the new one's, whose pages would be free while a layer still writes to them. */
TEST(backend, a_slot_that_is_given_anew_is_not_acknowledged)
{
    static struct looking looking;
    pthread_t thread;
    CHECK_INT(kern_cancels_create(4, &looking.cancels), STATUS_OK);
    CHECK(!pthread_create(&thread, NULL, look_on, &looking));
    uint64_t until_ns = clock_now_ns() + 500 * NS_PER_MS;
    unsigned rounds = 0;
    for (uint64_t begun = 1; clock_now_ns() < until_ns; begun += 100, rounds++) {
        uint32_t slot = rounds % 4;
        atomic_store(&looking.cancels->layers_begun, begun);
        kern_cancels_set(looking.cancels, slot);
        while (!kern_cancels_acked(looking.cancels, slot))
            ;
        atomic_store(&looking.cancels->layers_begun, begun + 50);
        kern_cancels_reset(looking.cancels, slot);
        for (int i = 0; i < 50; i++)
            CHECK(!kern_cancels_acked(looking.cancels, slot));
    }
    atomic_store(&looking.over, true);
    CHECK(!pthread_join(thread, NULL));
    CHECK_INT(atomic_load(&looking.cancels->lag_max), 0);
    CHECK(rounds > 0);
    kern_cancels_destroy(looking.cancels);
}

TEST(backend, names)
{
    const struct kern_backend *backend;
    struct err err = ERR_INIT;
    CHECK_INT(kern_backend_find("tpu", &backend, &err), STATUS_CONFIG);
    CHECK(strstr(err.message, "tpu") && strstr(err.message, "opaque"));
    enum kern_kv_type type = KERN_KV_F32;
    CHECK(kern_kv_type_parse("f16", &type) && type == KERN_KV_F16);
    CHECK(kern_kv_type_parse("int8", &type) && type == KERN_KV_INT8);
    CHECK(!kern_kv_type_parse("f64", &type) && !kern_kv_type_parse("fp8", &type));
    for (uint32_t head_dim = 32; head_dim <= KERN_HEAD_DIM_MAX; head_dim += 2) {
        uint32_t f16 = kern_kv_head_bytes(KERN_KV_F16, head_dim);
        CHECK_INT(f16, 2 * head_dim);
        CHECK_INT(kern_kv_head_bytes(KERN_KV_F32, head_dim), 2 * f16);
        CHECK(kern_kv_head_bytes(KERN_KV_INT8, head_dim) * 100 <= f16 * 56);
    }
}

/* A level that is not there is refused with those that are. */
TEST(backend, unknown_instruction_set)
{
    const struct kern_backend *backend;
    struct kern_device *device = NULL;
    struct err err = ERR_INIT;
    char expected[128];
    CHECK_INT(kern_backend_find("cpu", &backend, &err), STATUS_OK);
    struct kern_device_options options = {.threads = 1, .isa = "sse9"};
    CHECK_INT(backend->open(&options, &device, &err), STATUS_CONFIG);
    snprintf(expected, sizeof expected, "isa: \"sse9\" is none of auto, %s", cpu_isa_names());
    CHECK_STR(err.message, expected);
#if defined(__aarch64__)
    CHECK_STR(cpu_isa_names(), "plain, neon, dotprod");
    CHECK(cpu_isa_detect() >= CPU_ISA_NEON);
#endif
    for (size_t level = 0; level <= cpu_isa_detect(); level++) {
        enum cpu_isa_level parsed;
        CHECK(cpu_isa_parse(cpu_isa_name((enum cpu_isa_level)level), &parsed));
        CHECK_INT(parsed, level);
    }
}

/* The figures are a machine's: they are there, in an order that holds everywhere, and twice much the same. */
TEST(backend, peaks_are_measured_and_named)
{
    static const char *const names[] = {"cpu", "opaque"};
    struct kern_peaks peaks[2];
    char text[2][256];
    for (int i = 0; i < 2; i++) {
        struct kern_device *device = device_open(names[i], 1);
        device->ops->device_machine(device, text[i], sizeof text[i]);
        CHECK_INT(device->ops->device_peaks(device, &peaks[i]), STATUS_OK);
        device->ops->device_close(device);
        CHECK(peaks[i].read_bytes > 1e7);
        for (int type = 0; type < KERN_WEIGHT_TYPES; type++)
            CHECK(peaks[i].weight_ops[type] > 1e6 &&
                  peaks[i].weight_ops[type] == peaks[i].weight_ops[KERN_WEIGHT_F32]); /* f32 */
        for (int type = 0; type < KERN_KV_TYPE_COUNT; type++)
            CHECK(peaks[i].kv_ops[type] > 1e6);
    }
    CHECK_STR(text[0], text[1]);
    CHECK(strstr(text[0], "1 threads") && !strchr(text[0], '\t'));
}

/* At every level there is, no loop was left out by a compiler: products of one kind are not much faster than those of another, and
 * more than 1 TB/s is no memory. */
TEST(backend, peaks_are_of_work_that_is_done)
{
    for (int isa = 0; isa <= (int)cpu_isa_detect(); isa++) {
        struct peaks peaks;
        double gb_per_s;
        CHECK_INT(peaks_measure((enum cpu_isa_level)isa, 1, PEAKS_QUICK, &peaks), STATUS_OK);
        CHECK_INT(peaks_read_bandwidth((enum cpu_isa_level)isa, 8 << 20, 1, PEAKS_QUICK, &gb_per_s),
                  STATUS_OK);
        const double others[] = {peaks.int8, peaks.nibble, peaks.pair};
        for (int i = 0; i < 3; i++)
            CHECK_MSG(others[i] > peaks.f32 / 300 && others[i] < peaks.f32 * 300,
                      "%s: %g beside %g GOP/s of f32", cpu_isa_name((enum cpu_isa_level)isa),
                      others[i], peaks.f32);
        CHECK_MSG(gb_per_s > 0.01 && gb_per_s < 1000, "%s: %g GB/s",
                  cpu_isa_name((enum cpu_isa_level)isa), gb_per_s);
        struct peaks_reader *reader;
        CHECK_INT(peaks_reader_create((enum cpu_isa_level)isa, 8 << 20, 2, PEAKS_QUICK, &reader),
                  STATUS_OK);
        for (int again = 0; again < 2; again++) {
            gb_per_s = peaks_reader_rate(reader);
            CHECK_MSG(gb_per_s > 0.01 && gb_per_s < 1000, "%s, two threads: %g GB/s",
                      cpu_isa_name((enum cpu_isa_level)isa), gb_per_s);
        }
        peaks_reader_destroy(reader);
    }
}

TEST(backend, weights_ahead_are_what_they_will_be)
{
    static uint8_t data[48 * 64 * 4];
    for (int compute = 0; compute <= KERN_COMPUTE_INT8; compute++) {
        const struct kern_backend *backend;
        struct kern_device *device;
        struct err err = ERR_INIT;
        CHECK_INT(kern_backend_find("cpu", &backend, &err), STATUS_OK);
        struct kern_device_options options = {.threads = 1, .compute = (enum kern_compute)compute};
        CHECK_INT(backend->open(&options, &device, &err), STATUS_OK);
        for (int type = 0; type < KERN_WEIGHT_TYPES; type++) {
            struct kern_weights_desc desc = {.name = "a",
                                             .type = (enum kern_weight_type)type,
                                             .data = data,
                                             .rows = 37,
                                             .columns = 64};
            struct kern_weights *weights;
            CHECK_INT(device->ops->weights_create(device, &desc, &weights, &err), STATUS_OK);
            CHECK_INT(device->ops->weights_bytes_ahead(device, &desc),
                      device->ops->weights_bytes(weights));
            device->ops->weights_destroy(weights);
        }
        device->ops->device_close(device);
    }
}
