/* grows.c: a library whose loading waits for its own thread, which grows a small allocation to a large one. */
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
