/*
 * timings.h: timed nonblocking calls, until they complete.
 */
#ifndef OUTBOARD_MPI_TIMINGS_H
#define OUTBOARD_MPI_TIMINGS_H

#include "mpi.h"
#include <stdbool.h>

struct group;
struct route;

/* Registers the request of this call, which took `seconds` to post. */
void timings_add(MPI_Request request, const struct route *route, double seconds);
/* timings_any(): whether any request is timed. timings_contain(): whether any of these requests is timed; called before
 * they are tested or waited for. */
bool timings_any(void);
bool timings_contain(int count, const MPI_Request *requests);
/* Records that the request has completed in a call that took `seconds`. */
void timings_complete(MPI_Request request, double seconds);
void timings_remove(MPI_Request request);
void timings_remove_group(const struct group *group);

#endif
