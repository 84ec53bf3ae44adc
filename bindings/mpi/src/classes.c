/*
 * classes.c: the classes of the calls of each communicator, and the times of their calls.
 *
 * A class is a collective, a form and a size. The list of a communicator's classes is equal on all its members. The
 * times of calls differ between members until the members agree on them.
 */
#include <pthread.h>
#include <stdlib.h>

#include "classes.h"
#include "shim.h"
#include "stats.h"
#include "trials.h"

#define TEXT(Name, lower, ...) #lower,
const char *const collective_names[COLLECTIVES_KNOWN] = {COLLECTIVES(TEXT)};
#undef TEXT
const char *const form_names[FORMS] = {"blocking", "nonblocking", "persistent"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the times in trials, and `excess` */
static double excess;                                    /* seconds that trials have cost this rank */

struct class *class_find(const struct choices *choices, unsigned key)
{
    struct class *class = choices->latest;
    if (class != NULL && class->key == key)
        return class;
    for (class = choices->classes; class != NULL && class->key != key; class = class->next)
        continue;
    return class;
}

void class_append(struct choices *choices, struct class *class)
{
    struct class **end = &choices->classes;
    while (*end != NULL)
        end = &(*end)->next;
    *end = class;
}

void choices_free(struct choices *choices)
{
    while (choices->classes != NULL) {
        struct class *class = choices->classes;
        choices->classes = class->next;
        free(class);
    }
}

void class_fill_vector(struct class *class, double elapsed, double *vector)
{
    pthread_mutex_lock(&lock);
    trial_fill_vector(&class->trial, class->key, excess, elapsed, vector);
    pthread_mutex_unlock(&lock);
}

void class_apply_agreement(struct class *class, const double *vector)
{
    pthread_mutex_lock(&lock);
    excess += trial_apply_agreement(&class->trial, vector);
    pthread_mutex_unlock(&lock);
}

void class_record_time(struct class *class, enum path path, const struct trial_turn *turn, double seconds, double lost)
{
    stats_add_time(class->stats, path, seconds);
    if (turn->number < 0)
        return;
    pthread_mutex_lock(&lock);
    excess += trial_record(&class->trial, turn, seconds + lost);
    pthread_mutex_unlock(&lock);
}
