/*
 * lifetime.h: start and end of the shim.
 */
#ifndef OUTBOARD_MPI_LIFETIME_H
#define OUTBOARD_MPI_LIFETIME_H

/* After MPI_Init (collective over MPI_COMM_WORLD) and before MPI_Finalize. */
void shim_start(void);
void shim_stop(void);

#endif
