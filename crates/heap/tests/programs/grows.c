/* grows.c: a library that is loaded once a thread of its own has grown small memory to large. */
#include <pthread.h>
#include <stdlib.h>

static void *grow(void *memory)
{
    return realloc(memory, (size_t)1 << 20);
}

__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    void *memory = malloc(1000);
    if (memory == NULL || pthread_create(&thread, NULL, grow, memory) != 0 || pthread_join(thread, &memory) != 0)
        abort();
    free(memory);
}
