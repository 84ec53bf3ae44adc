/*
 * choice.h: natively or offloaded.
 */
#ifndef OUTBOARD_MPI_CHOICE_H
#define OUTBOARD_MPI_CHOICE_H

#include "mpi.h"
#include <stdbool.h>

#include "classes.h"
#include "report.h"
#include "shim.h"

struct call;

/* Reads OUTBOARD_CHOICE of rank 0 if the shim is `enabled` there. Collective over MPI_COMM_WORLD. True if every rank
 * should run natively. Sets whether rank 0 has a shim of the same sources. */
bool choice_agree_mode(bool enabled, bool *same_build);
/* choice_start() is called once all ranks are attached, choice_stop() before communicators go. Both are collective over
 * MPI_COMM_WORLD. */
void choice_start(void);
void choice_stop(void);
/* Called for a new communicator. Makes its group if every call is offloaded from the start; else does nothing. */
void communicator_made(MPI_Comm comm);
/* Chooses the path of a call, equally on all members. True for OFFLOADED: then the group is GROUPED. */
bool choice_offloads(const struct call *call, enum form form, struct route *route);
/* Times a call that was passed through. `made` is the request of a nonblocking call, else MPI_REQUEST_NULL. */
void choice_time_passed(const struct route *route, enum form form, MPI_Request made);
static inline void choice_record_passed(const struct route *route, enum collective collective, enum form form,
                                        MPI_Request made)
{
    report_count_passed(collective, form);
    if (route->timed)
        choice_time_passed(route, form, made);
}

#endif
