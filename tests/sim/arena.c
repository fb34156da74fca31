/* See arena.h. Blocks come from lists by size class, or from the end; a header of 16 bytes holds the class. */
#include "tests/sim/arena.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *arena_outside(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(memory != MAP_FAILED);
    return memory;
}

#ifdef BATON_SANITIZED

bool arena_works(void)
{
    return false;
}
void arena_enter(void)
{
}
void arena_leave(void)
{
}
void arena_reset(void)
{
}
size_t arena_bytes(void)
{
    return 0;
}
void arena_save(void *to)
{
    (void)to;
}
void arena_restore(const void *from, size_t bytes)
{
    (void)from;
    (void)bytes;
}
void arena_print(void)
{
}

#else

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

enum { CLASSES = 40 };
static const size_t arena_max = (size_t)256 << 20;

/* At the arena's beginning, so that it is saved with it. */
struct arena {
    size_t used;
    void *unused[CLASSES]; /* the first word of each links to the next */
};

struct header {
    uint64_t size_class;
    uint64_t bytes;
};

static __thread bool inside;
static struct arena *arena; /* set once, before the first save */

extern char __data_start, _end; /* the program's variables lie between */

bool arena_works(void)
{
    return true;
}

void arena_reset(void)
{
    if (!arena)
        arena = arena_outside(arena_max);
    memset(arena, 0, sizeof *arena);
    arena->used = (sizeof *arena + 63) & ~(size_t)63;
}

void arena_enter(void)
{
    assert(arena);
    inside = true;
}

void arena_leave(void)
{
    inside = false;
}

static size_t data_bytes(void)
{
    return (size_t)(&_end - &__data_start);
}

size_t arena_bytes(void)
{
    return data_bytes() + arena->used;
}

void arena_save(void *to)
{
    memcpy(to, &__data_start, data_bytes());
    memcpy((char *)to + data_bytes(), arena, arena->used);
}

void arena_restore(const void *from, size_t bytes)
{
    memcpy(&__data_start, from, data_bytes());
    memcpy(arena, (const char *)from + data_bytes(), bytes - data_bytes());
}

/* Four classes to each power of two. */
static unsigned class_of(size_t bytes, size_t *class_bytes_out)
{
    unsigned class = 0;
    size_t step = 16, size = 32;
    while (size < bytes && class < CLASSES - 1) {
        size += step;
        class ++;
        if (class % 4 == 0)
            step *= 2;
    }
    *class_bytes_out = size;
    return class;
}

static bool in_arena(const void *memory)
{
    return arena && (const char *)memory >= (const char *)arena &&
           (const char *)memory < (const char *)arena + arena_max;
}

static struct header *header_of(void *memory)
{
    return (struct header *)memory - 1;
}

static size_t large[256];
static unsigned large_count;

static void *arena_take(size_t bytes, size_t alignment)
{
    size_t class_bytes;
    unsigned class = class_of(bytes + sizeof(struct header), &class_bytes);
    bool listed = alignment <= 16 && class < CLASSES - 1;
    if (listed && arena->unused[class]) {
        void *memory = arena->unused[class];
        memcpy(&arena->unused[class], memory, sizeof(void *));
        header_of(memory)->bytes = bytes;
        return memory;
    }
    size_t size = listed ? class_bytes : bytes + sizeof(struct header);
    size_t at = arena->used + sizeof(struct header);
    at = (at + alignment - 1) & ~(alignment - 1);
    arena->used = (at - sizeof(struct header) + size + 15) & ~(size_t)15;
    assert(arena->used < arena_max);
    if (size > 2000 && large_count < 256)
        large[large_count++] = size;
    void *memory = (char *)arena + at;
    *header_of(memory) = (struct header){listed ? class : CLASSES, bytes};
    return memory;
}

void arena_print(void)
{
    printf("# %zu bytes, of them %zu of variables\n", arena_bytes(), data_bytes());
    for (unsigned i = 0; i < large_count; i++)
        printf("#   %zu\n", large[i]);
}

static void arena_give(void *memory)
{
    uint64_t class = header_of(memory)->size_class;
    if (class >= CLASSES)
        return; /* large or aligned: few, and the arena is reset before long */
    memcpy(memory, &arena->unused[class], sizeof(void *));
    arena->unused[class] = memory;
}

void *malloc(size_t bytes)
{
    return inside ? arena_take(bytes, 16) : __libc_malloc(bytes);
}

void free(void *memory)
{
    if (in_arena(memory))
        arena_give(memory);
    else
        __libc_free(memory);
}

void *calloc(size_t count, size_t bytes)
{
    if (!inside)
        return __libc_calloc(count, bytes);
    void *memory = arena_take(count * bytes, 16);
    return memset(memory, 0, count * bytes);
}

void *realloc(void *memory, size_t bytes)
{
    if (!in_arena(memory) && (!inside || memory))
        return __libc_realloc(memory, bytes);
    void *other = malloc(bytes);
    if (memory) {
        size_t before = header_of(memory)->bytes;
        memcpy(other, memory, before < bytes ? before : bytes);
        arena_give(memory);
    }
    return other;
}

void *memalign(size_t alignment, size_t bytes);
void *memalign(size_t alignment, size_t bytes)
{
    return inside ? arena_take(bytes, alignment) : __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **memory_out, size_t alignment, size_t bytes)
{
    *memory_out = memalign(alignment, bytes);
    return *memory_out ? 0 : 12;
}

#endif
