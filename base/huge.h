/* Memory for what is large and walked in no order, or read from end to end, in every step: tables of pages and sequences,
 * weights. From a megabyte on it lies on huge pages where the system gives them: on pages of 4 KiB a step over 1,024
 * sequences spends as much on walks through the page tables as on its work. The first write to a page is the system's work, tens of
 * microseconds where the machine is a virtual one: what serving would come to write little by little, its owner writes at the start.
 *
 * Owner: any thread. */
#ifndef BATON_BASE_HUGE_H
#define BATON_BASE_HUGE_H

#include <stddef.h>

/* `count` x `bytes` of zeros at a multiple of 64; what is never written takes no memory. NULL: there is none, or the product
 * does not fit. Size 0 gives memory like any other. */
void *huge_alloc(size_t count, size_t bytes);
/* NULL is fine. */
void huge_free(void *memory);

#endif
