/*
 * right: a library that the user preloads (LD_PRELOAD in the environment) stays loaded below `outboard run` as below
 * mpirun
 */
int user_was_here(void)
{
    return 42;
}
