/*
 * unknown.c: an MPI library that the shim does not know, and with -DPROGRAM a program for it.
 *
 * The program finds the functions of its library and no others below the shim. -DLOST makes a program that calls MPI
 * and has no MPI library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int MPI_Init(int *argc, char ***argv);
int MPI_Allgather(void);
int MPI_Finalize(void);

#ifdef LOST
int main(int argc, char **argv)
{
    int (*init)(int *, char ***);
    *(void **)&init = dlsym(RTLD_DEFAULT, "MPI_Init");
    return init == NULL ? 1 : init(&argc, &argv);
}
#elif defined PROGRAM
int main(int argc, char **argv)
{
    int right = MPI_Init(&argc, &argv) == 0 && MPI_Allgather() == 4711 && MPI_Finalize() == 0;
    right = right && dlsym(RTLD_DEFAULT, "MPI_Allgather") != NULL && dlsym(RTLD_DEFAULT, "MPI_Allgather_c") == NULL &&
            dlsym(RTLD_DEFAULT, "PMPI_Allreduce") == NULL;
    puts(right ? "right" : "wrong");
    return !right;
}
#else
int PMPI_Init(int *argc, char ***argv);
int PMPI_Get_library_version(char *version, int *length);

int PMPI_Init(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return 0;
}

int MPI_Init(int *argc, char ***argv)
{
    return PMPI_Init(argc, argv);
}

int MPI_Allgather(void)
{
    return 4711;
}

int MPI_Finalize(void)
{
    return 0;
}

int PMPI_Get_library_version(char *version, int *length)
{
    strcpy(version, VERSION);
    *length = (int)strlen(version);
    return 0;
}
#endif
