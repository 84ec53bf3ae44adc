/*
 * collectives.c: the shim's collectives by their C names: each blocking, nonblocking and, if this Open MPI has it,
 * persistent. Each offloads its call or passes it through and counts it.
 */
#include "choice.h"
#include "classes.h"
#include "interposed.h"
#include "methods.h"
#include "posting.h"

/* `offloaded` or the hidden function carries the call out; `made` is the request of a nonblocking call. */
#define FORM(function, hidden, form, offloaded, made, lower, send, receive, with, more_parameters, more_arguments)     \
    int function(PARAMETERS(send, receive, with) UNWRAP more_parameters)                                               \
    {                                                                                                                  \
        const struct call call = CALL(lower, send, receive, with);                                                     \
        struct route route;                                                                                            \
        if (choice_offloads(&call, form, &route))                                                                      \
            return offloaded;                                                                                          \
        int outcome = hidden(ARGUMENTS(send, receive, with) UNWRAP more_arguments);                                    \
        choice_record_passed(&route, COLLECTIVE_##lower, form, made);                                                  \
        return outcome;                                                                                                \
    }

#define PERSISTENT_FORM(function, hidden, ...)                                                                         \
    FORM(function, hidden, PERSISTENT, offload_persistent(&call, &route, request), MPI_REQUEST_NULL, __VA_ARGS__,      \
         (, MPI_Info info, MPI_Request *request), (, info, request))

/* Open MPI 5 has the persistent functions by their MPI 4 names; 4.1 may have them as an extension. */
#if OMPI_MAJOR_VERSION >= 5
#define PERSISTENT_OF(Name, ...) PERSISTENT_FORM(MPI_##Name##_init, PMPI_##Name##_init, __VA_ARGS__)
#else
#include <mpi-ext.h>
#if defined(OMPI_HAVE_MPI_EXT_PCOLLREQ) && OMPI_HAVE_MPI_EXT_PCOLLREQ
#define PERSISTENT_OF(Name, ...) PERSISTENT_FORM(MPIX_##Name##_init, PMPIX_##Name##_init, __VA_ARGS__)
#else
#define PERSISTENT_OF(...)
#endif
#endif

#define COLLECTIVE(Name, lower, upper, method, send, receive, with)                                                    \
    FORM(MPI_##Name, PMPI_##Name, BLOCKING, offload(&call, &route), MPI_REQUEST_NULL, lower, send, receive, with, (),  \
         ())                                                                                                           \
    FORM(MPI_I##lower, PMPI_I##lower, NONBLOCKING, offload_nonblocking(&call, &route, request), *request, lower, send, \
         receive, with, (, MPI_Request *request), (, request))                                                         \
    PERSISTENT_OF(Name, lower, send, receive, with)

COLLECTIVES(COLLECTIVE)
