/*
 * lifetime.h: start and end of the shim.
 */
#ifndef OUTBOARD_MPI_LIFETIME_H
#define OUTBOARD_MPI_LIFETIME_H

/* shim_start() runs after MPI_Init and is collective over MPI_COMM_WORLD. shim_stop() runs before MPI_Finalize. */
void shim_start(void);
void shim_stop(void);

#endif
