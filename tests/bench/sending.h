/* What a node's loop spends on the tokens of a step until gRPC has them: the real outbox over a real stream of proto/rpc, to another
 * process that reads and forgets.
 *
 *     sending_fork();                              before the process has threads
 *     sending_open(32);   us = sending_step(); …   sending_close();
 *
 * Anything that goes wrong ends the program. Owner: the main thread. */
#ifndef BATON_TESTS_BENCH_SENDING_H
#define BATON_TESTS_BENCH_SENDING_H

#include <stdint.h>

void sending_fork(void);
void sending_open(uint32_t sequences);
/* One token of each sequence: gathered, packed, sealed, handed over, and the loop's round in which the transport says that it took
 * the message. The calling thread's processor time in us; `process_us_out`: that of all threads, gRPC's too. */
double sending_step(double *process_us_out);
void sending_close(void);

#endif
