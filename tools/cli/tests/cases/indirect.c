/* right: a program that reaches MPI through a library of its own (linked to libsolver.so alone) is one job of N ranks */
#include <stdio.h>

int solve_rank(int *ranks);
void solve_end(void);

int main(void)
{
    int ranks, rank = solve_rank(&ranks);
    printf("%s rank %d of %d\n", ranks > 1 ? "PASS" : "FAIL", rank, ranks);
    solve_end();
    return 0;
}
