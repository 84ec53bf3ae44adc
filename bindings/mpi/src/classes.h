/*
 * classes.h: the classes of calls on a communicator, and the choices of its members.
 */
#ifndef OUTBOARD_MPI_CLASSES_H
#define OUTBOARD_MPI_CLASSES_H

#include <stdbool.h>
#include <stdint.h>

#include "shim.h"
#include "stats.h"
#include "trials.h"

struct group;

/* Classes by size: the bits of the number of bytes, 0 to 64, and one for unknown bytes. */
#define SIZE_UNKNOWN 65
#define SIZES (SIZE_UNKNOWN + 1)
#define CLASS_KEYS (COLLECTIVES_KNOWN * FORMS * SIZES)

/* A collective, a form and a size. */
static inline unsigned class_key(enum collective collective, enum form form, unsigned size)
{
    return ((unsigned)collective * FORMS + (unsigned)form) * SIZES + size;
}
static inline enum collective collective_of(unsigned key)
{
    return key / SIZES / FORMS;
}
static inline enum form form_of(unsigned key)
{
    return key / SIZES % FORMS;
}
static inline unsigned size_of(unsigned key)
{
    return key % SIZES;
}

extern const char *const collective_names[COLLECTIVES_KNOWN], *const form_names[FORMS];

/* Calls of one class on one communicator. */
struct class {
    unsigned key;
    struct trial trial;
    struct class_stats *stats;
    struct class *next;
};

/* The choices of a communicator's members so far; equal on all of them, except the times in trials. */
struct choices {
    struct class *classes;          /* in the order of their first calls */
    struct class *latest;
    int awaiting_agreement;         /* classes that wait for an agreement */
    struct class *in_trial;         /* the class that began its trial last */
    uint64_t calls, trial_began_at; /* calls of all classes so far, and at the start of the last trial */
    uint64_t no_trial_before;       /* calls of all classes before which no class requests a trial */
    unsigned groupless;             /* nonblocking calls that only the lack of a group kept native */
    uint64_t digest;                /* of the paths of all calls */
};

/* One call, from the choice of its path to its end. */
struct route {
    struct group *group; /* NULL, like `class`, if there is nothing to choose */
    struct class *class;
    enum path path;
    struct trial_turn trial_turn;
    uint64_t bytes;
    bool timed;
    double began;
};

/* NULL if the communicator has no calls of this class. */
struct class *class_find(const struct choices *choices, unsigned key);
void class_append(struct choices *choices, struct class *class);
void choices_free(struct choices *choices);
/* Fills in this rank's entries of the vector on which the members agree; `elapsed` is the time since MPI_Init. */
void class_fill_vector(struct class *class, double elapsed, double *vector);
void class_apply_agreement(struct class *class, const double *vector);
/* Records the time of a call inside MPI, and in a trial the time that its caller has lost outside. */
void class_record_time(struct class *class, enum path path, const struct trial_turn *turn, double seconds, double lost);

#endif
