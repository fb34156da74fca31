/* Intrusive doubly linked list: the link lies in the element, a head is a link that points to itself when empty.
 * Owner: the thread that owns the elements. */
#ifndef BATON_BASE_LIST_H
#define BATON_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

static inline void list_init(struct list *head)
{
    head->prev = head->next = head;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_insert_before(struct list *at, struct list *link)
{
    link->prev = at->prev;
    link->next = at;
    at->prev->next = link;
    at->prev = link;
}

static inline void list_push_back(struct list *head, struct list *link)
{
    list_insert_before(head, link);
}

static inline void list_push_front(struct list *head, struct list *link)
{
    list_insert_before(head->next, link);
}

/* Unlinks, and leaves the link empty, so that removing twice does no harm. */
static inline void list_remove(struct list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    list_init(link);
}

static inline struct list *list_pop_front(struct list *head)
{
    if (list_empty(head))
        return NULL;
    struct list *link = head->next;
    list_remove(link);
    return link;
}

/* The loop's body may remove `it`. */
#define list_for_each_safe(it, tmp, head) \
    for (struct list *it = (head)->next, *tmp = it->next; it != (head); it = tmp, tmp = it->next)
#define list_for_each(it, head) for (struct list *it = (head)->next; it != (head); it = it->next)

#endif
