/* Whether this thread has its core to itself.
 *
 * A core may run a second hardware thread, of another guest whom nobody here can see. It takes half of what the core hands out in a
 * cycle: loops out of registers that want two operations a cycle, as the peaks are measured, hardly notice, and kernels that want four or
 * five lose a third. So a share of a peak falls by a third with the hour, whatever the kernel is. This loop of 4.7 instructions a cycle,
 * twelve fused multiply-adds and loads and counting between them, notices: it goes at two multiply-adds a cycle or at 1.4 and less.
 *
 *     alone = undisturbed();  work();  alone = alone && undisturbed();
 *
 * Owner: one thread. */
#ifndef BATON_TESTS_BENCH_UNDISTURBED_H
#define BATON_TESTS_BENCH_UNDISTURBED_H

#include <stdbool.h>

/* One look, of some 15 us of processor time: at 95 % of the loop's own best, or more. The first one takes a third of a second more to
 * find that best. False on machines that have no such loop. */
bool undisturbed(void);

#endif
