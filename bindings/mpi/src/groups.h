/*
 * groups.h: the groups of communicators and of persistent requests.
 */
#ifndef OUTBOARD_MPI_GROUPS_H
#define OUTBOARD_MPI_GROUPS_H

#include "mpi.h"
#include <stdbool.h>

#include "classes.h"
#include "hosts.h"
#include "outboard.h"

enum group_state {
    NEW,       /* its placement is not computed yet */
    GROUPLESS, /* it may have a group and has none yet */
    GROUPED,
    REFUSED    /* it never has a group: all its calls pass through */
};

/* The shim's state of a communicator. Calls on one communicator are in order, so its fields need no lock. */
struct group {
    MPI_Comm comm;
    enum group_state state;
    outboard_group *members;    /* while GROUPED */
    int reduced_bits;           /* reductions up to this bit length of their bytes fit the scratch on all hosts */
    int ranks;
    int rank;
    struct placement placement; /* unless NEW or REFUSED */
    struct choices choices;
    struct neighbors *neighbors; /* NULL before the first neighbourhood collective (neighbors.c) */
};

/* Ends the program: a rank that does not know a communicator would choose otherwise than the other ranks. */
void group_out_of_memory(int ranks);
/* Computes the communicator's placement if it is missing; false if it is REFUSED. Local. */
bool group_eligible(struct group *group);
/* Collective over the communicator. Afterwards the group is GROUPED or REFUSED, equally on all members. */
void group_make(struct group *group);
/* Makes a separate group for a persistent request, as group_make() does: GROUPED or REFUSED. */
struct group *group_make_separate(const struct group *like);
/* Frees the group of a persistent request that is gone and has nothing in flight. Local. */
void group_drop(struct group *own);
/* Destroys the group, if there is one; from then on the state is REFUSED. */
void group_dissolve(struct group *group);

#endif
