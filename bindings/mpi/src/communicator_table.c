/*
 * communicator_table.c: the shim's data of each communicator, found by its handle without lock and without MPI.
 *
 * An open-addressed table with linear probing. Readers take no lock; threads that add and remove communicators do.
 *
 *   slot      entered by                   left by
 *   empty     a new table; clear_removed   communicator_table_add
 *   live      communicator_table_add       communicator_table_remove
 *   removed   communicator_table_remove    communicator_table_add; clear_removed
 *
 * Invariants: from the home of a live handle to its slot no slot is empty, at any time. A slot's group is written
 * before the slot's handle and read after the handle. A table is at most three quarters full. A table that has become
 * too small stays until MPI_Finalize, since a reader may still use it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "communicator_table.h"
#include "groups.h"

#define SLOTS_INITIAL 64

struct slot {
    _Atomic(uintptr_t) comm; /* the handle; 0: empty */
    struct group *group;
};

struct table {
    struct table *smaller; /* the previous table */
    size_t slots;
    size_t taken;          /* slots that are not empty */
    struct slot at[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct table *) table;
static int live_count;
static char tombstone;
#define REMOVED ((uintptr_t)&tombstone)

static size_t home_slot(const struct table *in, MPI_Comm comm)
{
    return ((uintptr_t)comm * (uintptr_t)0x9e3779b97f4a7c15u >> 24) & (in->slots - 1);
}

static size_t next_slot(const struct table *in, size_t slot)
{
    return (slot + 1) & (in->slots - 1);
}

struct group *group_of(MPI_Comm comm)
{
    struct table *in = atomic_load_explicit(&table, memory_order_acquire);
    if (in == NULL)
        return NULL;
    for (size_t slot = home_slot(in, comm);; slot = next_slot(in, slot)) {
        uintptr_t here = atomic_load_explicit(&in->at[slot].comm, memory_order_acquire);
        if (here == 0)
            return NULL;
        if (here == (uintptr_t)comm)
            return in->at[slot].group;
    }
}

/* With the lock held. */
static void insert(struct table *in, struct group *group)
{
    size_t slot = home_slot(in, group->comm);
    uintptr_t here;
    while ((here = atomic_load_explicit(&in->at[slot].comm, memory_order_relaxed)) != 0 && here != REMOVED)
        slot = next_slot(in, slot);
    in->taken += here == 0;
    in->at[slot].group = group;
    atomic_store_explicit(&in->at[slot].comm, (uintptr_t)group->comm, memory_order_release);
}

static bool is_live(const struct slot *slot)
{
    uintptr_t comm = atomic_load_explicit(&slot->comm, memory_order_relaxed);
    return comm != 0 && comm != REMOVED;
}

/* With the lock held: returns a table with room for one more entry. */
static struct table *table_with_room(void)
{
    struct table *old = atomic_load_explicit(&table, memory_order_relaxed);
    if (old != NULL && (old->taken + 1) * 4 <= old->slots * 3)
        return old;
    size_t slots = old == NULL ? SLOTS_INITIAL : old->slots * 2;
    struct table *made = calloc(1, sizeof *made + slots * sizeof *made->at);
    if (made == NULL)
        return NULL;
    made->smaller = old;
    made->slots = slots;
    for (size_t slot = 0; old != NULL && slot < old->slots; slot++)
        if (is_live(&old->at[slot]))
            insert(made, old->at[slot].group);
    atomic_store_explicit(&table, made, memory_order_release);
    return made;
}

bool communicator_table_add(struct group *group)
{
    pthread_mutex_lock(&lock);
    struct table *in = table_with_room();
    if (in != NULL) {
        insert(in, group);
        live_count++;
    }
    pthread_mutex_unlock(&lock);
    return in != NULL;
}

/* With the lock held: empties the removed slots in front of an empty slot. Such slots need no tombstone. */
static void clear_removed(struct table *in, size_t slot)
{
    while (atomic_load_explicit(&in->at[next_slot(in, slot)].comm, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&in->at[slot].comm, memory_order_relaxed) == REMOVED) {
        atomic_store_explicit(&in->at[slot].comm, 0, memory_order_release);
        in->taken--;
        slot = (slot + in->slots - 1) & (in->slots - 1);
    }
}

void communicator_table_remove(MPI_Comm comm)
{
    pthread_mutex_lock(&lock);
    struct table *in = atomic_load_explicit(&table, memory_order_relaxed);
    size_t slot = home_slot(in, comm);
    while (atomic_load_explicit(&in->at[slot].comm, memory_order_relaxed) != (uintptr_t)comm)
        slot = next_slot(in, slot);
    atomic_store_explicit(&in->at[slot].comm, REMOVED, memory_order_release);
    live_count--;
    clear_removed(in, slot);
    pthread_mutex_unlock(&lock);
}

int communicator_table_count(void)
{
    pthread_mutex_lock(&lock);
    int count = live_count;
    pthread_mutex_unlock(&lock);
    return count;
}

struct group *communicator_table_any(void)
{
    struct group *any = NULL;
    pthread_mutex_lock(&lock);
    struct table *in = atomic_load_explicit(&table, memory_order_relaxed);
    for (size_t slot = 0; in != NULL && any == NULL && slot < in->slots; slot++)
        if (is_live(&in->at[slot]))
            any = in->at[slot].group;
    pthread_mutex_unlock(&lock);
    return any;
}

void communicator_table_free(void)
{
    struct table *in = atomic_exchange(&table, NULL);
    while (in != NULL) {
        struct table *smaller = in->smaller;
        free(in);
        in = smaller;
    }
}
