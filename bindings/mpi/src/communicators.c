/*
 * communicators.c: communicators from the first collective on them until the program frees them.
 *
 * A communicator enters the table by its first collective, so a communicator without collectives costs nothing. It
 * leaves the table when MPI deletes its attribute: when the program frees the communicator, or in MPI_Finalize.
 */
#include <stdlib.h>

#include "communicators.h"
#include "classes.h"
#include "communicator_table.h"
#include "groups.h"
#include "library.h"
#include "neighbors.h"
#include "requests.h"
#include "timings.h"

static int group_keyval = MPI_KEYVAL_INVALID;
/* The communicator that this thread is freeing: calls on it by its callbacks do not enter it again. */
static _Thread_local MPI_Comm being_freed;

struct group *group_of_call(MPI_Comm comm)
{
    struct group *group = group_of(comm);
    int inter = 1, ranks = 0;
    if (group != NULL || library_context() == NULL || comm == MPI_COMM_NULL || comm == being_freed ||
        mpi.Comm_test_inter(comm, &inter) != MPI_SUCCESS)
        return group;
    mpi.Comm_size(comm, &ranks);
    group = calloc(1, sizeof *group);
    if (group == NULL)
        group_out_of_memory(ranks);
    group->comm = comm;
    group->state = inter || ranks < 2 ? REFUSED : NEW;
    group->ranks = ranks;
    mpi.Comm_rank(comm, &group->rank);
    if (!communicator_table_add(group) || mpi.Comm_set_attr(comm, group_keyval, group) != MPI_SUCCESS)
        group_out_of_memory(ranks);
    return group;
}

/* MPI calls this function when the communicator is freed. */
static int free_group(MPI_Comm comm, int keyval, void *attribute, void *extra)
{
    (void)comm;
    (void)keyval;
    (void)extra;
    struct group *group = attribute;
    requests_drain(group->comm);
    group_dissolve(group);
    timings_remove_group(group);
    choices_free(&group->choices);
    neighbors_free(group->neighbors);
    communicator_table_remove(group->comm);
    free(group);
    return MPI_SUCCESS;
}

/* A duplicate of a communicator enters the table by its own first collective. */
static int copy_nothing(MPI_Comm comm, int keyval, void *extra, void *from, void *to, int *flag)
{
    (void)comm, (void)keyval, (void)extra, (void)from, (void)to;
    *flag = 0;
    return MPI_SUCCESS;
}

int communicators_start(void)
{
    return mpi.Comm_create_keyval(copy_nothing, free_group, &group_keyval, NULL);
}

void communicators_free_all(void)
{
    for (struct group *group = communicator_table_any(); group != NULL; group = communicator_table_any())
        mpi.Comm_delete_attr(group->comm, group_keyval);
    communicator_table_free();
}

void communicators_stop(void)
{
    mpi.Comm_free_keyval(&group_keyval);
}

MPI_Comm communicator_begin_free(MPI_Comm comm)
{
    MPI_Comm previous = being_freed;
    if (group_of(comm) != NULL)
        requests_drain(comm);
    being_freed = comm;
    return previous;
}

void communicator_end_free(MPI_Comm previous)
{
    being_freed = previous;
}
