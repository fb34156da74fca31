/* See link.h. The handlers of the transport come in here, inside xfer_progress: they change states and may post, but an
 * endpoint's close only begins there and ends in a later progress. */
#include "kvtransfer/link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/plant.h"
#include "kvtransfer/link_impl.h"

/* One round ends after so many turns of the worker, or bytes of pieces, so that the loop's other work comes; an owner that hashes
 * in piece_received hashes no more than that at a time (and a piece). */
enum { PROGRESS_TURNS = 64, PROGRESS_BYTES = 1 << 20, WAIT_VAIN_MAX = 8 };
static const uint64_t tick_ns = 2 * NS_PER_MS;
static const uint64_t rate_sample_ns = 20 * NS_PER_MS;

static const struct sm_state link_states[] = {
    [KV_LINK_FREE] = {"free", SM_TO(KV_LINK_CONNECTING) | SM_TO(KV_LINK_DOWN)},
    [KV_LINK_CONNECTING] = {"connecting", SM_TO(KV_LINK_UP) | SM_TO(KV_LINK_CLOSING)},
    [KV_LINK_UP] = {"up", SM_TO(KV_LINK_CONNECTING) | SM_TO(KV_LINK_CLOSING)},
    [KV_LINK_CLOSING] = {"closing", SM_TO(KV_LINK_DOWN) | SM_TO(KV_LINK_FREE)},
    [KV_LINK_DOWN] = {"down", SM_TO(KV_LINK_CONNECTING) | SM_TO(KV_LINK_FREE)},
};
static const struct sm_table link_table = SM_TABLE("kv link", link_states);

const char *kv_link_state_text(enum kv_link_state state)
{
    return sm_name(&link_table, state);
}

/* --- rates --- */

void kv_rate_begin(struct kv_rate *rate, uint64_t now_ns)
{
    if (rate->active++ == 0)
        rate->mark_ns = now_ns;
}

void kv_rate_end(struct kv_rate *rate, uint64_t now_ns, size_t bytes)
{
    assert(rate->active > 0);
    rate->active--;
    if (now_ns > rate->mark_ns && bytes)
        rate->busy_ns += now_ns - rate->mark_ns;
    rate->mark_ns = now_ns;
    rate->bytes += bytes;
    uint64_t before = rate->bytes_per_s, busy_ns = rate->busy_ns + 1000;
    uint64_t sample = (uint64_t)((double)rate->bytes * 1e9 / (double)busy_ns);
    /* far faster than it was, over as many bytes as a sample had then: another link, so to say */
    bool leap = before && sample > 4 * before &&
                (double)rate->bytes * 1e9 >= (double)before * (double)rate_sample_ns;
    if (rate->busy_ns < rate_sample_ns && !leap)
        return;
    if (!before || leap)
        rate->bytes_per_s = sample;
    else if (sample < before / 4) /* far slower, but one stall alone is not to say so */
        rate->bytes_per_s = (before + sample) / 2;
    else
        rate->bytes_per_s = (3 * before + sample) / 4;
    rate->busy_ns = rate->bytes = 0;
}

unsigned kv_link_window(const struct kv_link *link)
{
    const struct kv_links_options *options = &link->links->options;
    uint64_t rate = link->send_rate.bytes_per_s;
    if (!rate || !link->piece_bytes)
        return options->window_max;
    double fits = (double)rate * (double)options->window_ns / 1e9 / (double)link->piece_bytes;
    if (fits >= (double)options->window_max)
        return options->window_max;
    return fits < 1 ? 1 : (unsigned)fits;
}

/* --- sending --- */

static void tuple_fill(const struct kv_link *link, struct kv_frame *frame)
{
    frame->version = link->wire;
    frame->from_incarnation = link->links->incarnation;
    frame->to_incarnation = link->incarnation;
    frame->epoch = link->epoch;
}

enum status kv_link_send(struct kv_link *link, struct kv_frame *frame)
{
    if (!kv_link_usable(link))
        return STATUS_CLOSED;
    uint8_t bytes[KV_FRAME_BYTES_MAX];
    tuple_fill(link, frame);
    return xfer_send_frame(link->peer, bytes, kv_frame_encode(frame, bytes));
}

size_t kv_link_piece_header(const struct kv_link *link, struct kv_frame *frame, uint8_t *out)
{
    tuple_fill(link, frame);
    return kv_frame_encode(frame, out);
}

static void hello_send(struct kv_link *link, bool reply_wanted)
{
    struct kv_frame *frame = &link->links->out;
    frame->type = KV_FRAME_HELLO;
    frame->key = (struct kv_key){0};
    frame->hello.reply_wanted = reply_wanted;
    kv_link_send(link, frame); /* a lost one is said again while connecting */
}

/* --- states --- */

static void link_connect(struct kv_link *link, struct xfer_peer *peer)
{
    struct kv_links *links = link->links;
    sm_move(&link_table, &link->state, KV_LINK_CONNECTING);
    link->why = STATUS_OK;
    link->peer = peer;
    link->hello_ns = 0; /* at the next tick */
    links->ticked_ns = 0;
    link->since_ns = links->patient_ns;
    link->ops_moved_ns = link->frames_moved_ns = links->patient_ns;
    link->load = xfer_peer_load(peer);
}

/* Something has come from the peer, under this epoch. */
static void link_heard(struct kv_link *link)
{
    link->heard_ns = link->links->patient_ns;
    if (link->state != KV_LINK_CONNECTING)
        return;
    sm_move(&link_table, &link->state, KV_LINK_UP);
    link->why = STATUS_OK;
}

void kv_link_doubt(struct kv_link *link)
{
    if (link->state != KV_LINK_UP)
        return;
    sm_move(&link_table, &link->state, KV_LINK_CONNECTING);
    link->why = STATUS_TIMEOUT;
    link->hello_ns = link->links->ticked_ns = 0;
    link->since_ns = link->links->patient_ns;
}

/* The endpoint ends, and with it every transfer on it. */
static void link_fail(struct kv_link *link, enum status status)
{
    struct kv_links *links = link->links;
    if (!kv_link_usable(link))
        return;
    sm_move(&link_table, &link->state, KV_LINK_CLOSING);
    link->why = status;
    link->since_ns = links->now_ns;
    links->ticked_ns = 0;
    xfer_peer_close(link->peer);
    for (int i = 0; i < KV_SIDE_COUNT; i++)
        if (links->sides[i].object && !PLANTED(OUTLIVES_ENDPOINT))
            links->sides[i].link_ended(links->sides[i].object, link, status);
    assert(list_empty(&link->source_ring));
}

/* The endpoint is gone, or given up on. */
static void link_closed(struct kv_link *link)
{
    link->peer = NULL;
    link->serial++;
    link->sends = 0;
    link->send_rate.active = link->receive_rate.active = 0;
    link->since_ns = link->links->now_ns;
    link->links->ticked_ns = 0;
    sm_move(&link_table, &link->state, link->leaving ? KV_LINK_FREE : KV_LINK_DOWN);
}

/* Under `epoch`, or a later one where the two workers have met more often. */
static enum status link_open_peer(struct kv_link *link, uint32_t epoch, struct err *err)
{
    struct xfer_peer *peer;
    uint32_t number = epoch;
    enum status status = xfer_peer_open(link->links->xfer, link->address, link->address_bytes,
                                        &number, link, &peer, err);
    if (status)
        return status;
    link->epoch = number;
    link_connect(link, peer);
    return STATUS_OK;
}

enum status kv_link_reopen(struct kv_link *link, struct err *err)
{
    if (link->state != KV_LINK_DOWN)
        return err_set(err, STATUS_AGAIN, "kv link: it is %s", kv_link_state_text(link->state));
    uint32_t next = link->epoch + 1;
    return link_open_peer(link, next > link->epoch_wanted ? next : link->epoch_wanted, err);
}

/* Tells the owner where each link stands; a link that is FREE is told once and then forgotten. */
static void links_tell(struct kv_links *links)
{
    for (unsigned i = 0; i < links->opened; i++) {
        struct kv_link *link = &links->slots[i];
        if (link->told == link->state)
            continue;
        link->told = link->state;
        if (links->events.link_changed)
            links->events.link_changed(links->events.context, link, link->state, link->why);
    }
}

/* --- what the transport calls --- */

static void hello_received(struct kv_link *link, const struct kv_frame *frame)
{
    struct kv_links *links = link->links;
    if (frame->epoch > link->epoch) {
        /* The peer has met us under a later epoch: what was there is over, also when we have not seen it fail. */
        if (frame->epoch > link->epoch_wanted)
            link->epoch_wanted = frame->epoch;
        links->ticked_ns = 0;
        link_fail(link, STATUS_CLOSED);
    } else if (!kv_link_usable(link)) {
        links->counters.stale[KV_FRAME_HELLO]++;
    } else if (frame->epoch < link->epoch) {
        links->counters.stale[KV_FRAME_HELLO]++;
        link->hello_reply_owed = true; /* so that the peer learns the epoch */
        links->ticked_ns = 0;
    } else {
        link_heard(link);
        if (frame->hello.reply_wanted) {
            link->hello_reply_owed = true;
            links->ticked_ns = 0;
        }
    }
}

/* The link that this frame may be about; NULL (counted) when it is not of the current tuple. */
static struct kv_link *frame_link(struct kv_links *links, const struct kv_frame *frame)
{
    struct kv_link *link = NULL;
    if (frame->to_incarnation == links->incarnation)
        link = kv_link_find(links, frame->from_incarnation);
    if (link && frame->version != link->wire)
        link = NULL;
    if (link && frame->type == KV_FRAME_HELLO)
        return link;
    if (link && kv_link_usable(link) && frame->epoch == link->epoch) {
        link_heard(link);
        return link;
    }
    links->counters.stale[frame->type]++;
    return NULL;
}

static void on_frame(void *context, const uint8_t *bytes, size_t count)
{
    struct kv_links *links = context;
    struct kv_frame *frame = &links->in;
    if (kv_frame_decode(bytes, count, frame) || frame->type == KV_FRAME_PIECE) {
        links->counters.stale[KV_FRAME_NONE]++;
        return;
    }
    struct kv_link *link = frame_link(links, frame);
    if (!link)
        return;
    if (frame->type == KV_FRAME_HELLO) {
        hello_received(link, frame);
        return;
    }
    bool for_source = frame->type == KV_FRAME_PULL || frame->type == KV_FRAME_DONE;
    struct kv_side *side = &links->sides[for_source ? KV_SIDE_SOURCE : KV_SIDE_SINK];
    if (side->object)
        side->frame(side->object, link, frame);
    else
        links->counters.stale[frame->type]++;
}

static void on_piece(void *context, const uint8_t *header, size_t header_bytes,
                     size_t payload_bytes, struct xfer_incoming *incoming)
{
    struct kv_links *links = context;
    struct kv_frame *frame = &links->in;
    if (kv_frame_decode(header, header_bytes, frame) || frame->type != KV_FRAME_PIECE) {
        links->counters.stale[KV_FRAME_NONE]++;
        return;
    }
    struct kv_link *link = frame_link(links, frame);
    if (!link)
        return;
    struct kv_side *side = &links->sides[KV_SIDE_SINK];
    if (side->piece)
        side->piece(side->object, link, frame, payload_bytes, incoming);
    else
        links->counters.stale[KV_FRAME_PIECE]++;
}

static void on_peer_failed(void *context, void *peer_context, struct xfer_peer *peer,
                           enum status status)
{
    struct kv_links *links = context;
    struct kv_link *link = peer_context;
    if (!link || link->peer != peer)
        return;
    links->counters.links_failed++;
    link_fail(link, status);
}

static void on_peer_closed(void *context, void *peer_context, struct xfer_peer *peer)
{
    struct kv_link *link = peer_context;
    if (link && link->peer == peer) /* else it was quarantined, and has come back after all */
        link_closed(link);
}

struct xfer_handler kv_links_handler(struct kv_links *links)
{
    return (struct xfer_handler){.context = links,
                                 .frame = on_frame,
                                 .piece = on_piece,
                                 .peer_failed = on_peer_failed,
                                 .peer_closed = on_peer_closed};
}

/* --- rounds --- */

/* UP and silent: nothing may be wanted, or the peer's end was lost on the way. A word to an endpoint that is gone ends ours at once. */
static void link_tick_idle(struct kv_link *link)
{
    struct kv_links *links = link->links;
    const struct kv_links_options *options = &links->options;
    uint64_t silent_ns = links->patient_ns - link->heard_ns;
    if (link->state != KV_LINK_UP || !options->idle_ns || silent_ns < options->idle_ns)
        return;
    if (silent_ns >= options->idle_ns + options->stall_ns) {
        links->counters.links_stalled++;
        link_fail(link, STATUS_TIMEOUT);
    } else if (links->now_ns >= link->hello_ns) {
        link->hello_ns = links->now_ns + options->hello_ns;
        hello_send(link, true);
    }
}

static void link_tick_stall(struct kv_link *link)
{
    struct kv_links *links = link->links;
    struct xfer_load load = xfer_peer_load(link->peer);
    if (load.ops == 0 || load.ops_done != link->load.ops_done)
        link->ops_moved_ns = links->patient_ns;
    if (load.frames == 0 || load.frames_done != link->load.frames_done)
        link->frames_moved_ns = links->patient_ns;
    link->load = load;
    uint64_t since_ns =
        link->ops_moved_ns < link->frames_moved_ns ? link->ops_moved_ns : link->frames_moved_ns;
    if (links->patient_ns - since_ns >= links->options.stall_ns) {
        links->counters.links_stalled++;
        link_fail(link, STATUS_TIMEOUT);
    }
}

static void link_tick(struct kv_link *link)
{
    struct kv_links *links = link->links;
    const struct kv_links_options *options = &links->options;
    if (kv_link_usable(link)) {
        if (link->hello_reply_owed) {
            link->hello_reply_owed = false;
            hello_send(link, false);
        }
        if (link->state == KV_LINK_CONNECTING && links->now_ns >= link->hello_ns) {
            link->hello_ns = links->now_ns + options->hello_ns;
            hello_send(link, true);
        }
        if (link->state == KV_LINK_CONNECTING &&
            links->patient_ns - link->since_ns >= options->stall_ns) {
            links->counters.links_stalled++;
            link_fail(link, STATUS_TIMEOUT);
            return;
        }
        link_tick_idle(link);
        if (kv_link_usable(link))
            link_tick_stall(link);
    } else if (link->state == KV_LINK_CLOSING) {
        if (links->now_ns - link->since_ns >= options->quarantine_ns) {
            links->counters.links_quarantined++;
            link_closed(link);
        }
    } else if (link->state == KV_LINK_DOWN) {
        bool wanted = link->epoch_wanted > link->epoch;
        uint64_t after_ns = link->called ? options->called_ns : options->reopen_ns;
        bool due = after_ns && links->now_ns - link->since_ns >= after_ns;
        if ((wanted || due) && kv_link_reopen(link, NULL))
            link->since_ns = links->now_ns; /* no free endpoint yet: again later */
    }
}

static void links_tick(struct kv_links *links)
{
    links->ticked_ns = links->now_ns;
    for (unsigned i = 0; i < links->opened; i++)
        if (links->slots[i].state != KV_LINK_FREE)
            link_tick(&links->slots[i]);
    for (int i = 0; i < KV_SIDE_COUNT; i++)
        if (links->sides[i].object)
            links->sides[i].tick(links->sides[i].object);
}

void kv_links_flush(struct kv_links *links)
{
    for (int i = 0; i < KV_SIDE_COUNT; i++)
        if (links->sides[i].object)
            links->sides[i].flush(links->sides[i].object);
}

/* While pieces are in flight the next event is a few microseconds away, and sleeping would cost more than that: looks on for so
 * long. A peer that computes, a slow link or a busy machine make this vain; each time that it was, it is left out for twice as
 * many sleeps as before. True: something has come. */
static bool links_wait(struct kv_links *links)
{
    bool in_flight = false;
    for (unsigned i = 0; i < links->opened && !in_flight; i++)
        in_flight = kv_link_usable(&links->slots[i]) && xfer_peer_load(links->slots[i].peer).ops;
    if (!in_flight || !links->options.wait_ns || xfer_event_fd(links->xfer) < 0)
        return false; /* the last: a transport within the process, by the pace of a test's clock */
    if (links->wait_skips) {
        links->wait_skips--;
        return false;
    }
    for (uint64_t until_ns = clock_now_ns() + links->options.wait_ns; clock_now_ns() < until_ns;)
        if (xfer_progress(links->xfer)) {
            links->wait_vain = 0;
            return true;
        }
    links->wait_vain += links->wait_vain < WAIT_VAIN_MAX;
    links->wait_skips = (1u << links->wait_vain) - 1;
    return false;
}

bool kv_links_progress(struct kv_links *links, uint64_t now_ns, uint64_t late_total_ns)
{
    bool late = late_total_ns != links->late_ns;
    links->now_ns = now_ns;
    links->late_ns = late_total_ns;
    links->patient_ns = now_ns - late_total_ns;
    const struct kv_counters *counters = &links->counters;
    uint64_t bytes_until = counters->bytes_sent + counters->bytes_received + PROGRESS_BYTES;
    bool more = true;
    for (int turn = 0; more && turn < PROGRESS_TURNS; turn++) {
        uint64_t pieces_sent = counters->pieces_sent;
        more = xfer_progress(links->xfer) > 0 || links_wait(links);
        if (counters->pieces_sent != pieces_sent) { /* the window is to stay full */
            links_tell(links);
            kv_links_flush(links);
        }
        if (counters->bytes_sent + counters->bytes_received >= bytes_until)
            break;
    }
    links_tell(links);
    if (late || links->ticked_ns == 0 || now_ns - links->ticked_ns >= tick_ns)
        links_tick(links);
    kv_links_flush(links);
    links_tell(links);
    links->more = more || links->ticked_ns == 0;
    return links->more;
}

uint64_t kv_links_next_ns(const struct kv_links *links)
{
    uint64_t next_ns = DEADLINE_NONE;
    bool any = false;
    for (unsigned i = 0; i < links->opened && !any; i++)
        any = links->slots[i].state != KV_LINK_FREE;
    if (any) /* stalls, HELLOs, drains: none needs more than this */
        next_ns = links->now_ns + 100 * NS_PER_MS;
    for (int i = 0; i < KV_SIDE_COUNT; i++) {
        const struct kv_side *side = &links->sides[i];
        uint64_t side_ns = side->object ? side->next_ns(side->object) : DEADLINE_NONE;
        if (side_ns < next_ns)
            next_ns = side_ns;
    }
    if (kv_links_paced(links) && links->paced_ns < next_ns)
        next_ns = links->paced_ns;
    uint64_t xfer_ns = xfer_next_ns(links->xfer);
    if (xfer_ns < next_ns)
        next_ns = xfer_ns;
    if (links->ticked_ns == 0)
        return links->now_ns;
    /* deadlines are looked at in ticks: waking between two of them would only spin */
    uint64_t tick_due_ns = links->ticked_ns + tick_ns;
    return next_ns > tick_due_ns ? next_ns : tick_due_ns;
}

/* --- in a loop --- */

static bool hook_receive(void *context)
{
    struct kv_links *links = context;
    kv_links_progress(links, loop_now_ns(links->loop), loop_late_total_ns(links->loop));
    return false;
}

static bool hook_submit(void *context)
{
    kv_links_flush(context);
    return false;
}

/* Arming has a price and is undone by progress, so it comes last before the sleep; busy means no sleep. */
static bool hook_prepare(void *context)
{
    struct kv_links *links = context;
    loop_timer_set(&links->timer, kv_links_next_ns(links));
    return links->more || !xfer_arm(links->xfer);
}

static void timer_fired(void *context)
{
    (void)context; /* the RECEIVE hook does the work */
}

static void io_ready(void *context, uint32_t epoll_events)
{
    (void)context;
    (void)epoll_events;
}

enum status kv_links_attach(struct kv_links *links, struct loop *loop, struct err *err)
{
    int fd = xfer_event_fd(links->xfer);
    if (fd >= 0) {
        enum status status = loop_io_start(loop, &links->io, fd, EPOLLIN, io_ready, links, err);
        if (status)
            return err_wrap(err, "kv worker");
    }
    links->loop = loop;
    links->now_ns = links->patient_ns =
        loop_now_ns(loop); /* else the first timer is due at 0, and all since is late */
    loop_timer_init(loop, &links->timer, timer_fired, links);
    loop_hook_add(loop, &links->receive_hook, LOOP_RECEIVE, hook_receive, links);
    loop_hook_add(loop, &links->submit_hook, LOOP_SUBMIT, hook_submit, links);
    loop_hook_add(loop, &links->prepare_hook, LOOP_PREPARE, hook_prepare, links);
    return STATUS_OK;
}

void kv_links_detach(struct kv_links *links)
{
    if (!links->loop)
        return;
    loop_hook_remove(&links->receive_hook);
    loop_hook_remove(&links->submit_hook);
    loop_hook_remove(&links->prepare_hook);
    loop_timer_stop(&links->timer);
    loop_io_stop(&links->io);
    links->loop = NULL;
}

/* --- all links --- */

enum status kv_links_create(const struct kv_links_options *options,
                            const struct kv_links_events *events, uint64_t own_incarnation,
                            struct kv_links **links_out, struct err *err)
{
    struct kv_links *links = calloc(1, sizeof *links);
    if (!links)
        return err_set(err, STATUS_MEMORY, "kv links: no memory");
    if (options)
        links->options = *options;
    struct kv_links_options *o = &links->options;
    o->links_max = o->links_max ? o->links_max : 64;
    o->window_max = o->window_max ? o->window_max : 8;
    o->window_ns = o->window_ns ? o->window_ns : 250 * NS_PER_MS;
    o->stall_ns = o->stall_ns ? o->stall_ns : 4 * NS_PER_S;
    o->hello_ns = o->hello_ns ? o->hello_ns : 500 * NS_PER_MS;
    o->quarantine_ns = o->quarantine_ns ? o->quarantine_ns : NS_PER_S;
    if (!o->called_ns && o->reopen_ns)
        o->called_ns = 20 * NS_PER_S;
    if (events)
        links->events = *events;
    links->incarnation = own_incarnation;
    links->slots = calloc(o->links_max, sizeof *links->slots);
    if (!links->slots) {
        err_set(err, STATUS_MEMORY, "kv links: no memory for %u", o->links_max);
        free(links);
        return STATUS_MEMORY;
    }
    for (unsigned i = 0; i < o->links_max; i++) {
        links->slots[i].links = links;
        list_init(&links->slots[i].source_ring);
    }
    *links_out = links;
    return STATUS_OK;
}

void kv_links_start(struct kv_links *links, struct xfer *xfer)
{
    assert(!links->xfer);
    links->xfer = xfer;
}

void kv_links_destroy(struct kv_links *links)
{
    if (!links)
        return;
    kv_links_detach(links);
    links->events = (struct kv_links_events){0};
    for (int i = 0; i < KV_SIDE_COUNT; i++)
        if (links->sides[i].object)
            links->sides[i].end_all(links->sides[i].object);
    for (unsigned i = 0; i < links->options.links_max; i++)
        kv_link_close(&links->slots[i]);
    xfer_destroy(links->xfer);
    kv_links_flush(links);
    free(links->slots);
    free(links);
}

void kv_links_renew(struct kv_links *links, uint64_t own_incarnation)
{
    for (unsigned i = 0; i < links->options.links_max; i++)
        kv_link_close(&links->slots[i]);
    links->incarnation = own_incarnation;
}

uint64_t kv_links_incarnation(const struct kv_links *links)
{
    return links->incarnation;
}

void kv_links_set_router(struct kv_links *links, uint64_t router_incarnation)
{
    links->router_incarnation = router_incarnation;
}

struct xfer *kv_links_xfer(struct kv_links *links)
{
    return links->xfer;
}

const struct kv_counters *kv_links_counters(const struct kv_links *links)
{
    return &links->counters;
}

/* --- one link --- */

enum status kv_link_open(struct kv_links *links, const struct kv_link_options *options,
                         struct kv_link **link_out, struct err *err)
{
    uint32_t wire = options->wire ? options->wire : WIRE_OLDEST;
    if (kv_link_find(links, options->incarnation))
        return err_set(err, STATUS_IN_USE, "kv link: one to this peer is open");
    if (wire < WIRE_OLDEST || wire > WIRE_NEWEST)
        return err_set(err, STATUS_MISMATCH, "wire: version %u, this program speaks %d to %d", wire,
                       WIRE_OLDEST, WIRE_NEWEST);
    if (options->address_bytes == 0 || options->address_bytes > XFER_ADDRESS_BYTES_MAX)
        return err_set(err, STATUS_INVALID, "kv_address: %zu bytes (1 to %d)",
                       options->address_bytes, XFER_ADDRESS_BYTES_MAX);
    struct kv_link *link = NULL;
    for (unsigned i = 0; i < links->options.links_max && !link; i++)
        if (links->slots[i].state == KV_LINK_FREE && links->slots[i].told == KV_LINK_FREE)
            link = &links->slots[i];
    if (!link)
        return err_set(err, STATUS_FULL, "kv links: %u are open already", links->options.links_max);
    if ((unsigned)(link - links->slots) >= links->opened)
        links->opened = (unsigned)(link - links->slots) + 1;
    *link = (struct kv_link){.links = links,
                             .serial = link->serial,
                             .incarnation = options->incarnation,
                             .called = options->incarnation < links->incarnation,
                             .wire = (uint16_t)wire,
                             .context = options->context,
                             .address_bytes = options->address_bytes};
    list_init(&link->source_ring);
    memcpy(link->address, options->address, options->address_bytes);
    if (link->called) { /* its HELLO has the first epoch */
        sm_move(&link_table, &link->state, KV_LINK_DOWN);
        link->since_ns = links->now_ns;
        *link_out = link;
        return STATUS_OK;
    }
    enum status status = link_open_peer(link, 1, err);
    if (status) {
        link->incarnation = 0;
        return status;
    }
    *link_out = link;
    return STATUS_OK;
}

void kv_link_close(struct kv_link *link)
{
    if (link->state == KV_LINK_FREE)
        return;
    link->leaving = true;
    if (link->state == KV_LINK_DOWN)
        sm_move(&link_table, &link->state, KV_LINK_FREE);
    else
        link_fail(link, STATUS_CLOSED);
}

struct kv_link *kv_link_find(struct kv_links *links, uint64_t incarnation)
{
    for (unsigned i = 0; i < links->opened; i++) {
        struct kv_link *link = &links->slots[i];
        if (link->state != KV_LINK_FREE && !link->leaving && link->incarnation == incarnation)
            return link;
    }
    return NULL;
}

struct kv_link_info kv_link_info(const struct kv_link *link)
{
    return (struct kv_link_info){
        .state = link->state,
        .incarnation = link->incarnation,
        .epoch = link->epoch,
        .wire = link->wire,
        .outstanding = link->peer ? xfer_peer_load(link->peer).ops : 0,
        .window = kv_link_window(link),
        .send_bytes_per_s = link->send_rate.bytes_per_s,
        .receive_bytes_per_s = link->receive_rate.bytes_per_s,
    };
}

void *kv_link_context(const struct kv_link *link)
{
    return link->context;
}
