/* A node over real UCX in a process of its own, driven by lines on stdin, for test_ucx.c to serve, kill and freeze.
 *
 *     stdout  address INCARNATION HEX           once, at start
 *     stdin   peer INCARNATION HEX              opens the link
 *             give ID NUMBER BLOCKS RUNS BYTES  answers PULLs of this transfer, all pieces ready
 *             take ID NUMBER BLOCKS RUNS BYTES  fetches it
 *             state                             -> state LIVE DRAINING TAKING ENDING FDS RSS_KB
 *     stdout  opened ID                         the give is ready
 *             given ID STATUS                   released
 *             taken ID STATUS EQUAL             released
 *
 * Ends at the end of stdin. Usage: kv_peer TRANSPORT INCARNATION */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tests/kvtransfer/rig.h"
#include "tests/kvtransfer/ucx_rig.h"

enum { TRANSFERS_MAX = 2048, LINE_BYTES = 16384 };

static struct rig_node node;
static struct kv_link *link_to_test;
static struct loop *loop;
static struct loop_io input;
static char line[LINE_BYTES];
static size_t line_bytes;
static struct rig_give gives[TRANSFERS_MAX];
static struct rig_take takes[TRANSFERS_MAX];
static unsigned give_count, take_count;

static void act(char *text)
{
    unsigned long long id, number;
    unsigned blocks, runs, bytes;
    char hex[LINE_BYTES];
    if (sscanf(text, "peer %llu %s", &id, hex) == 2) {
        link_to_test = ucx_rig_link(&node, id, hex);
    } else if (sscanf(text, "give %llu %llu %u %u %u", &id, &number, &blocks, &runs, &bytes) == 5) {
        struct rig_give *give = &gives[give_count++ % TRANSFERS_MAX];
        rig_give_start(give, &node, rig_key(id, number), rig_shape(blocks, (uint16_t)runs), bytes);
        rig_give_all(give, (uint32_t)id);
        printf("opened %llu\n", id);
    } else if (sscanf(text, "take %llu %llu %u %u %u", &id, &number, &blocks, &runs, &bytes) == 5) {
        struct rig_take *take = &takes[take_count++ % TRANSFERS_MAX];
        *take = (struct rig_take){0};
        rig_take_start(take, &node, link_to_test, rig_key(id, number),
                       rig_shape(blocks, (uint16_t)runs), bytes);
    } else if (strncmp(text, "state", 5) == 0) {
        printf("state %u %u %u %u %u %u\n", kv_source_live(node.source),
               kv_source_draining(node.source), kv_sink_live(node.sink), kv_sink_ending(node.sink),
               ucx_rig_fds(), ucx_rig_rss_kb());
    }
}

static void input_ready(void *context, uint32_t events)
{
    (void)context;
    (void)events;
    ssize_t count = read(STDIN_FILENO, line + line_bytes, sizeof line - 1 - line_bytes);
    if (count <= 0) {
        loop_stop(loop);
        return;
    }
    line_bytes += (size_t)count;
    line[line_bytes] = '\0';
    char *end, *at = line;
    while ((end = strchr(at, '\n'))) {
        *end = '\0';
        act(at);
        at = end + 1;
    }
    line_bytes -= (size_t)(at - line);
    memmove(line, at, line_bytes);
}

/* Tells what was released, and frees it. */
static bool report(void *context)
{
    (void)context;
    for (unsigned i = 0; i < TRANSFERS_MAX; i++) {
        if (gives[i].data && gives[i].released) {
            printf("given %llu %d\n", (unsigned long long)gives[i].key.transfer.low,
                   gives[i].status);
            rig_give_finish(&gives[i]);
        }
        if (takes[i].memory && (takes[i].released || takes[i].begun)) {
            bool equal = takes[i].status == STATUS_OK && rig_take_equal(&takes[i]);
            printf("taken %llu %d %d\n", (unsigned long long)takes[i].key.transfer.low,
                   takes[i].begun ? takes[i].begun : takes[i].status, equal);
            rig_take_finish(&takes[i]);
        }
    }
    fflush(stdout);
    return false;
}

int main(int argc, char **argv)
{
    struct err err = ERR_INIT;
    if (argc != 3)
        return 2;
    struct xfer_options options = {.transport = ucx_rig_transport(argv[1])};
    static const struct rig_options rig = {.links = {.reopen_ns = 200 * NS_PER_MS}};
    rig_node_start(&node, NULL, &options, &rig, strtoull(argv[2], NULL, 0));
    ucx_rig_print_address(&node, stdout, "address");
    fflush(stdout);
    struct loop_hook hook;
    if (loop_create(&loop, &err) || kv_links_attach(node.links, loop, &err) ||
        loop_io_start(loop, &input, STDIN_FILENO, EPOLLIN, input_ready, NULL, &err)) {
        fprintf(stderr, "kv_peer: %s\n", err.message);
        return 1;
    }
    loop_hook_add(loop, &hook, LOOP_COMPLETE, report, NULL);
    loop_run(loop);
    loop_hook_remove(&hook);
    loop_io_stop(&input);
    rig_node_stop(&node);
    loop_destroy(loop);
    for (unsigned i = 0; i < TRANSFERS_MAX; i++) {
        rig_give_finish(&gives[i]);
        rig_take_finish(&takes[i]);
    }
    return 0;
}
