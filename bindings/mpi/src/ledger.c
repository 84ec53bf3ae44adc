/*
 * ledger.c: counts and times of native and offloaded calls: a row for each class of calls and place of their
 * communicators.
 *
 * The ledger is local to this rank. Rows are added and stay until MPI_Finalize; the report and the file of remembered.c
 * are made of them.
 */
#include <pthread.h>
#include <stdlib.h>

#include "shim.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct row *rows;

struct row *ledger_row(unsigned key, const struct place *place)
{
    pthread_mutex_lock(&lock);
    struct row **at = &rows;
    while (*at != NULL && ((*at)->key != key || !same_place(&(*at)->place, place)))
        at = &(*at)->next;
    if (*at == NULL && (*at = calloc(1, sizeof **at)) != NULL) {
        (*at)->key = key;
        (*at)->place = *place;
    }
    struct row *row = *at;
    pthread_mutex_unlock(&lock);
    return row;
}

void ledger_counted(struct row *row, enum way way)
{
    atomic_fetch_add_explicit(&row->calls[way], 1, memory_order_relaxed);
}

void ledger_timed(struct row *row, enum way way, double seconds)
{
    atomic_fetch_add_explicit(&row->nanoseconds[way], (unsigned long long)(seconds * 1e9), memory_order_relaxed);
}

void ledger_chosen(struct row *row, const struct trial *trial)
{
    pthread_mutex_lock(&lock);
    row->way = trial->way;
    row->why = trial->why;
    if (trial->why == TRIED || !row->tried)
        row->learnt = trial->learnt; /* a communicator without a verdict does not replace the result of another */
    row->tried = row->tried || trial->serial > 0;
    pthread_mutex_unlock(&lock);
}

const struct row *ledger_first(void)
{
    return rows;
}

double ledger_saved(void)
{
    double saved = 0;
    for (const struct row *row = rows; row != NULL; row = row->next)
        saved += (double)atomic_load(&row->calls[OFFLOADED]) *
                 (row->learnt.seconds[NATIVE] - row->learnt.seconds[OFFLOADED]);
    return saved;
}

void ledger_stop(void)
{
    while (rows != NULL) {
        struct row *row = rows;
        rows = row->next;
        free(row);
    }
}
