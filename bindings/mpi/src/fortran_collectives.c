/*
 * fortran_collectives.c: the functions of collectives.c by their Fortran names; see fortran.c.
 */
#include "fortran.h"

/* Fortran's MPI_BOTTOM and MPI_IN_PLACE are variables of libmpi, known by their addresses. */
extern int mpi_fortran_bottom_ __attribute__((weak));
extern int mpi_fortran_in_place_ __attribute__((weak));

static void *fortran_buffer(char *address)
{
    if (address == (char *)&mpi_fortran_bottom_)
        return MPI_BOTTOM;
    return address == (char *)&mpi_fortran_in_place_ ? MPI_IN_PLACE : address;
}

static void answer_request(int outcome, MPI_Request made, MPI_Fint *request, MPI_Fint *ierr)
{
    if (outcome == MPI_SUCCESS)
        *request = PMPI_Request_c2f(made);
    answer(outcome, ierr);
}

/* `offloads` takes the call and `answers` tells the outcome, or the hidden function does both. */
#define FORM(function, name, NAME, form, offloads, answers, lower, send, receive, with, more_parameters,               \
             more_arguments)                                                                                           \
    FORTRAN_AS(function, name, NAME, (PARAMETERS(send, receive, with) UNPACK more_parameters, MPI_Fint * ierr))        \
    {                                                                                                                  \
        HIDDEN_NAME(function);                                                                                         \
        const struct call call = CALL(lower, send, receive, with);                                                     \
        MPI_Request made __attribute__((unused));                                                                      \
        int outcome;                                                                                                   \
        if (offloads) {                                                                                                \
            answers;                                                                                                   \
            return;                                                                                                    \
        }                                                                                                              \
        double began = PMPI_Wtime();                                                                                   \
        next(ARGUMENTS(send, receive, with) UNPACK more_arguments, ierr);                                              \
        report_passed(COLLECTIVE_##lower, form, PMPI_Wtime() - began);                                                 \
    }

#define PERSISTENT_FORM(function, name, NAME, ...)                                                                     \
    FORM(function, name, NAME, PERSISTENT, offload_persistent(&call, &made, &outcome),                                 \
         answer_request(outcome, made, request, ierr), __VA_ARGS__, (, MPI_Fint * info, MPI_Fint * request),           \
         (, info, request))

/* Open MPI 4.1 has the persistent forms as an extension. */
#if OMPI_MAJOR_VERSION >= 5
#define PERSISTENT_OF(lower, upper, ...)                                                                               \
    PERSISTENT_FORM(ompi_##lower##_init_f, mpi_##lower##_init, MPI_##upper##_INIT, lower, __VA_ARGS__)
#else
#define PERSISTENT_OF(lower, upper, ...)                                                                               \
    PERSISTENT_FORM(ompix_##lower##_init_f, mpix_##lower##_init, MPIX_##upper##_INIT, lower, __VA_ARGS__)
#endif

#define COLLECTIVE(Name, lower, upper, method, send, receive, with)                                                    \
    FORM(ompi_##lower##_f, mpi_##lower, MPI_##upper, BLOCKING, offload(&call, &outcome), answer(outcome, ierr), lower, \
         send, receive, with, (), ())                                                                                  \
    FORM(ompi_i##lower##_f, mpi_i##lower, MPI_I##upper, NONBLOCKING, offload_nonblocking(&call, &made, &outcome),      \
         answer_request(outcome, made, request, ierr), lower, send, receive, with, (, MPI_Fint * request),             \
         (, request))                                                                                                  \
    PERSISTENT_OF(lower, upper, send, receive, with)

COLLECTIVES(COLLECTIVE)
