/* See virtual.h. In place of base/random.c and base/loop_epoll.c. */
#include "tests/sim/virtual.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/loop_impl.h"
#include "base/plant.h"
#include "base/random.h"

/* --- chance --- */

uint64_t dice_u64(struct dice *dice)
{
    uint64_t z = dice->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint32_t dice_below(struct dice *dice, uint32_t sides)
{
    return sides ? (uint32_t)((dice_u64(dice) >> 32) % sides) : 0;
}

uint64_t dice_between(struct dice *dice, uint64_t low, uint64_t high)
{
    return low + dice_u64(dice) % (high - low + 1);
}

bool dice_chance(struct dice *dice, uint32_t parts, uint32_t of)
{
    return dice_below(dice, of) < parts;
}

enum { RANDOM_STREAMS = 16 };
static struct dice random_dice[RANDOM_STREAMS];
static uint32_t random_owner;

void virtual_random_for(uint32_t process)
{
    assert(process < RANDOM_STREAMS);
    random_owner = process;
}

uint64_t virtual_random_state(uint32_t process)
{
    return random_dice[process].state;
}

uint64_t random_u64(void)
{
    uint64_t value = 0;
    while (!value)
        value = dice_u64(&random_dice[random_owner]);
    return value;
}

void random_bytes(void *out, size_t bytes)
{
    uint8_t *at = out;
    while (bytes--)
        *at++ = (uint8_t)(dice_u64(&random_dice[random_owner]) >> 56);
}

/* --- time --- */

static uint64_t now_ns;

uint64_t clock_now_ns(void)
{
    return now_ns;
}

void virtual_start(uint64_t start_ns, uint64_t random_seed)
{
    now_ns = start_ns;
    for (uint32_t i = 0; i < RANDOM_STREAMS; i++)
        random_dice[i].state = mix64(random_seed + i);
}

void virtual_time(uint64_t to_ns)
{
    assert(to_ns >= now_ns);
    now_ns = to_ns;
}

/* --- loops --- */

enum status loop_create(struct loop **loop_out, struct err *err)
{
    struct loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return err_set(err, STATUS_MEMORY, "event loop: no memory");
    loop_init(loop);
    *loop_out = loop;
    return STATUS_OK;
}

void loop_destroy(struct loop *loop)
{
    if (!loop)
        return;
    loop_finish(loop);
    free(loop);
}

uint64_t virtual_loop_sleep(struct loop *loop)
{
    return loop_plan(loop, DEADLINE_NONE);
}

void virtual_loop_turn(struct loop *loop, uint64_t planned_ns)
{
    loop_wake(loop, planned_ns);
    loop->event_count = 0;
    loop_act(loop);
}

bool virtual_loop_woken(const struct loop *loop)
{
    return loop->event_count > 0;
}

enum status loop_waker_init(struct loop *loop, struct loop_waker *waker,
                            void (*woken)(void *context), void *context, struct err *err)
{
    (void)err;
    *waker = (struct loop_waker){.woken = woken, .context = context, .io = {.loop = loop}};
    return STATUS_OK;
}

/* What production does in `woken` here is nothing: a round is all that a wake is for. */
void loop_waker_wake(struct loop_waker *waker)
{
    if (waker->io.loop)
        waker->io.loop->event_count = 1;
}

void loop_waker_finish(struct loop_waker *waker)
{
    waker->io.loop = NULL;
}

/* kv_links knows how to do without a descriptor. */
enum status loop_io_start(struct loop *loop, struct loop_io *io, int fd, uint32_t epoll_events,
                          void (*ready)(void *context, uint32_t epoll_events), void *context,
                          struct err *err)
{
    return err_set(err, STATUS_IO, "no descriptors here");
}

void loop_io_stop(struct loop_io *io)
{
    assert(!io->loop);
}

/* --- what is broken on purpose --- */

enum plant planted;

/* --- the trace --- */

bool trace_on;

void trace_line(const char *format, ...)
{
    printf("# %12.6f ", (double)now_ns / 1e9);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}
