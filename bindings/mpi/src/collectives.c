/*
 * collectives.c: the collectives that the shim stands in for, by their C names: each blocking, nonblocking and, where this
 * Open MPI has it, persistent. Each offloads its call or passes it on and counts that.
 */
#include "interposed.h"

/* `offloads` takes the call, or the hidden function does. */
#define FORM(function, hidden, form, offloads, lower, send, receive, with, more_parameters, more_arguments)            \
    int function(PARAMETERS(send, receive, with) UNPACK more_parameters)                                               \
    {                                                                                                                  \
        const struct call call = CALL(lower, send, receive, with);                                                     \
        int outcome;                                                                                                   \
        if (offloads)                                                                                                  \
            return outcome;                                                                                            \
        double began = PMPI_Wtime();                                                                                   \
        outcome = hidden(ARGUMENTS(send, receive, with) UNPACK more_arguments);                                        \
        report_passed(COLLECTIVE_##lower, form, PMPI_Wtime() - began);                                                 \
        return outcome;                                                                                                \
    }

#define PERSISTENT_FORM(function, hidden, ...)                                                                         \
    FORM(function, hidden, PERSISTENT, offload_persistent(&call, request, &outcome), __VA_ARGS__,                      \
         (, MPI_Info info, MPI_Request *request), (, info, request))

/* Open MPI 5 has the names of MPI 4; 4.1 has them as an extension, where it was built with that. */
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
    FORM(MPI_##Name, PMPI_##Name, BLOCKING, offload(&call, &outcome), lower, send, receive, with, (), ())              \
    FORM(MPI_I##lower, PMPI_I##lower, NONBLOCKING, offload_nonblocking(&call, request, &outcome), lower, send,         \
         receive, with, (, MPI_Request *request), (, request))                                                         \
    PERSISTENT_OF(Name, lower, send, receive, with)

COLLECTIVES(COLLECTIVE)
