/*
 * collectives.c: the shim's collectives: each blocking, nonblocking and persistent, with counts of both widths. Each
 * offloads its call, or passes it through and counts it.
 */
#include "binding.h"
#include "choice.h"
#include "classes.h"
#include "interposed.h"
#include "methods.h"
#include "posting.h"

/* `offloaded` or the MPI library's `function` carries the call out; `made` is the request of a nonblocking call. */
#define FORM(function, form, offloaded, made, P, lower, send, receive, with, more_parameters, more_arguments)          \
    static int shim_##function(PARAMETERS(P, send, receive, with) UNWRAP more_parameters)                              \
    {                                                                                                                  \
        if (CALLED_BY_MPI)                                                                                             \
            return mpi.function(ARGUMENTS(send, receive, with) UNWRAP more_arguments);                                 \
        const struct call call = CALL(lower, send, receive, with);                                                     \
        struct route route;                                                                                            \
        if (choice_offloads(&call, form, &route))                                                                      \
            return offloaded;                                                                                          \
        int outcome = mpi.function(ARGUMENTS(send, receive, with) UNWRAP more_arguments);                              \
        choice_record_passed(&route, COLLECTIVE_##lower, form, made);                                                  \
        return outcome;                                                                                                \
    }

#define FORMS_OF(P, Name, lower, suffix, send, receive, with)                                                          \
    FORM(Name##suffix, BLOCKING, offload(&call, &route), MPI_REQUEST_NULL, P, lower, send, receive, with, (), ())      \
    FORM(I##lower##suffix, NONBLOCKING, offload_nonblocking(&call, &route, request), *request, P, lower, send,         \
         receive, with, (, MPI_Request * request), (, request))                                                        \
    FORM(Name##_init##suffix, PERSISTENT, offload_persistent(&call, &route, request), MPI_REQUEST_NULL, P, lower,      \
         send, receive, with, (, MPI_Info info, MPI_Request * request), (, info, request))

#define COLLECTIVE(Name, lower, method, send, receive, with) FORMS_OF(PARAMETER, Name, lower, , send, receive, with)
#define COLLECTIVE_C(Name, lower, method, send, receive, with)                                                         \
    FORMS_OF(PARAMETER_C, Name, lower, _c, send, receive, with)

#define WIDE false
COLLECTIVES(COLLECTIVE)
#undef WIDE
#define WIDE true
COLLECTIVES(COLLECTIVE_C)

#define ENTRY(function) {#function, (any_function *)shim_##function},
#define ENTRIES(Name, lower, ...)                                                                                      \
    ENTRY(Name) ENTRY(I##lower) ENTRY(Name##_init) ENTRY(Name##_c) ENTRY(I##lower##_c) ENTRY(Name##_init_c)

const struct interposed collectives_interposed[] = {COLLECTIVES(ENTRIES){NULL, NULL}};
