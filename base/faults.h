/* What goes wrong on purpose, in test builds only (meson -Dfaults=true): one seeded schedule, asked by whatever carries or keeps
 * bytes (kvtransfer/xfer_fault.h, proto/rpc/rpc_fault.h, node/rest_fault.h). Without that option this is faults_absent.c: a
 * schedule cannot be made, and the programs refuse the option that asks for one.
 *
 *     BATON_FAULTS="seed=7 frame.drop=0.01 piece.flip=0.002 message.stall=0.001 delay_ms=30 stall_ms=600 max=100000"
 *
 *     PLACE.KIND=SHARE   of all things that pass there: frame (control frames of the KV hand-off), piece (its payloads), message
 *                        (of the streams between the router and its nodes), rest (sealed pieces that lie in a node's memory)
 *     KIND               drop · delay · duplicate · reorder · flip (one bit) · stall (everything to that peer waits)
 *     delay_ms, stall_ms how long at most; the schedule draws from the half of it up to it
 *     max                after so many faults nothing more goes wrong; 0: no end
 *
 * Whether the n-th thing at a place is hit depends on the seed, the place and n alone: with the same order of things the same
 * faults come again.
 * Owner: the loop thread. */
#ifndef BATON_BASE_FAULTS_H
#define BATON_BASE_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/metrics.h"

#define FAULTS_PLACES(X) X(FRAME, "frame") X(PIECE, "piece") X(MESSAGE, "message") X(REST, "rest")
#define FAULTS_KINDS(X) \
    X(DROP, "drop")     \
    X(DELAY, "delay")   \
    X(DUPLICATE, "duplicate") X(REORDER, "reorder") X(FLIP, "flip") X(STALL, "stall")

enum faults_place {
#define X(name, text) FAULTS_##name,
    FAULTS_PLACES(X)
#undef X
        FAULTS_PLACE_COUNT
};
enum faults_kind {
#define X(name, text) FAULTS_##name,
    FAULTS_KINDS(X)
#undef X
        FAULTS_KIND_COUNT
};
const char *faults_place_text(enum faults_place place);
const char *faults_kind_text(enum faults_kind kind);

struct faults;

/* Whether this build can make a schedule. */
bool faults_built(void);
/* UNIMPLEMENTED: not built; CONFIG: names the word and the limit. */
enum status faults_create(const char *spec, struct faults **faults_out, struct err *err);
void faults_destroy(struct faults *faults); /* takes NULL */

/* The next thing passes at `place`; then each fault is asked for as it can be done. */
void faults_next(struct faults *faults, enum faults_place place);
/* True, counted: this thing is hit by this kind. False when `faults` is NULL. */
bool faults_hit(struct faults *faults, enum faults_place place, enum faults_kind kind);
/* Below `limit` (at least 1), of the schedule too. */
uint64_t faults_random(struct faults *faults, enum faults_place place, uint64_t limit);
uint64_t faults_delay_ns(struct faults *faults, enum faults_place place);
uint64_t faults_stall_ns(struct faults *faults, enum faults_place place);
/* Flips one bit of `data`, wherever the schedule says. */
void faults_flip_bit(struct faults *faults, enum faults_place place, void *data, size_t bytes);
/* Takes back a hit that could not be carried out. */
void faults_miss(struct faults *faults, enum faults_place place, enum faults_kind kind);

uint64_t faults_count(const struct faults *faults, enum faults_place place, enum faults_kind kind);
uint64_t faults_total(const struct faults *faults);
uint64_t faults_seed(const struct faults *faults);
/* `baton_faults_injected{place=,kind=}`, of every kind that the schedule may do. */
void faults_declare(const struct faults *faults, struct metrics *metrics);

#endif
