/*
 * headers.c: the shim's own mpi.h of a family beside the mpi.h of an installed MPI: types and constants are equal.
 *
 * Compiled with -DOURS it prints each value of the shim's header, else of the installed one; the test compares both.
 * Open MPI's handles are printed as the variables whose addresses they are. headers.inc lists the constants.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "mpi.h"
#ifdef OURS
struct mpi_library mpi;
#endif

#define VALUE(name) {#name, (intptr_t)(name)},
#define SIZE(type) {#type, sizeof(type)},
#define FIELD(field) {#field, offsetof(MPI_Status, field)},

int main(void)
{
#ifdef OURS
#define FIND(name) mpi.name = dlsym(RTLD_DEFAULT, #name);
    MPI_VARIABLES(FIND)
#endif
    const struct {
        const char *name;
        intptr_t value;
    } all[] = {
        SIZE(MPI_Aint) SIZE(MPI_Count) SIZE(MPI_Offset) SIZE(MPI_Comm) SIZE(MPI_Datatype) SIZE(MPI_Group)
        SIZE(MPI_Info) SIZE(MPI_Op) SIZE(MPI_Request) SIZE(MPI_Status)
        FIELD(MPI_SOURCE) FIELD(MPI_TAG) FIELD(MPI_ERROR)
#include "headers.inc"
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        Dl_info where;
        if (dladdr((void *)all[i].value, &where) != 0 && where.dli_sname != NULL)
            printf("%s %s\n", all[i].name, where.dli_sname);
        else
            printf("%s %lld\n", all[i].name, (long long)all[i].value);
    }
    return 0;
}
