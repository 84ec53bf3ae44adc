/*
 * transport_sockets.c: the measuring program on TCP sockets alone. It shows the kernel's time to move the bytes of a
 * call by unicast. Each rank has a connection to every other rank, sends and receives in place, and sleeps while no
 * connection is ready. No message is framed, matched or protected. Only the two exchanges that `bench processor-time`
 * measures exist; any other call ends the program.
 *
 * OUTBOARD_BENCH_SOCKETS has ADDRESS:PORT of all ranks, separated by commas; OUTBOARD_BENCH_RANK is this rank's number.
 */
#define _GNU_SOURCE
#include "transport.h"

#include "control.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_S = 30, RETRY_NS = 10 * 1000 * 1000 };

/* The rest of a call on one connection, one way. `open` says whether the kernel may send or receive more now. */
struct way {
    char *at;
    size_t left;
    bool open;
};

static struct peer {
    int socket;
    struct way out, in;
} *peers;
static uint32_t own_rank, all_ranks;
static int poller = -1;

static void check(bool well, const char *what)
{
    if (!well)
        transport_fail("%s: %s", what, strerror(errno));
}

static struct sockaddr_in *addresses(char *list)
{
    struct sockaddr_in *all = NULL;
    for (char *rest = NULL, *one = strtok_r(list, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest)) {
        all = realloc(all, sizeof *all * (all_ranks + 1));
        check(all != NULL, "memory for addresses");
        char *port = strchr(one, ':');
        if (port != NULL)
            *port++ = '\0';
        struct sockaddr_in *here = &all[all_ranks++];
        *here = (struct sockaddr_in){.sin_family = AF_INET};
        if (port == NULL || inet_pton(AF_INET, one, &here->sin_addr) != 1)
            transport_fail("OUTBOARD_BENCH_SOCKETS has no ADDRESS:PORT at %s", one);
        here->sin_port = htons((uint16_t)atoi(port));
    }
    return all;
}

static int new_socket(void)
{
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(made >= 0, "socket");
    return made;
}

/* Connects, and retries while the other rank does not listen yet. */
static int connected_to(const struct sockaddr_in *address)
{
    const int64_t until = clock_now_ns() + (int64_t)CONNECT_S * 1000 * 1000 * 1000;
    for (;;) {
        const int made = new_socket();
        if (connect(made, (const struct sockaddr *)address, sizeof *address) == 0)
            return made;
        check(errno == ECONNREFUSED && clock_now_ns() < until, "connect");
        close(made);
        clock_sleep_until_ns(clock_now_ns() + RETRY_NS);
    }
}

void transport_start(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    const char *list = getenv("OUTBOARD_BENCH_SOCKETS"), *rank = getenv("OUTBOARD_BENCH_RANK");
    if (list == NULL || rank == NULL)
        transport_fail("OUTBOARD_BENCH_SOCKETS or OUTBOARD_BENCH_RANK is not set");
    own_rank = (uint32_t)atoi(rank);
    char *copy = strdup(list);
    check(copy != NULL, "memory for addresses");
    struct sockaddr_in *all = addresses(copy);
    peers = calloc(all_ranks, sizeof *peers);
    check(peers != NULL, "memory for connections");
    const int one = 1, listener = new_socket();
    check(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0, "setsockopt");
    check(bind(listener, (struct sockaddr *)&all[own_rank], sizeof *all) == 0, "bind");
    check(listen(listener, (int)all_ranks) == 0, "listen");
    poller = epoll_create1(EPOLL_CLOEXEC);
    check(poller >= 0, "epoll_create1");
    /* This rank connects to lower ranks and sends its number; higher ranks connect to it. */
    for (uint32_t below = 0; below < own_rank; below++) {
        peers[below].socket = connected_to(&all[below]);
        check(write(peers[below].socket, &own_rank, sizeof own_rank) == sizeof own_rank, "write");
    }
    for (uint32_t above = own_rank + 1; above < all_ranks; above++) {
        uint32_t caller = 0;
        const int made = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        check(made >= 0, "accept4");
        check(recv(made, &caller, sizeof caller, MSG_WAITALL) == sizeof caller, "recv");
        if (caller <= own_rank || caller >= all_ranks || peers[caller].socket != 0)
            transport_fail("rank %u calls, or somebody else", caller);
        peers[caller].socket = made;
    }
    for (uint32_t at = 0; at < all_ranks; at++) {
        struct epoll_event both = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = at};
        if (at == own_rank)
            continue;
        check(setsockopt(peers[at].socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "setsockopt");
        check(fcntl(peers[at].socket, F_SETFL, O_NONBLOCK) == 0, "fcntl");
        check(epoll_ctl(poller, EPOLL_CTL_ADD, peers[at].socket, &both) == 0, "epoll_ctl");
    }
    close(listener);
    free(all);
    free(copy);
}

void transport_stop(void)
{
    transport_barrier();
}

uint32_t transport_rank(void)
{
    return own_rank;
}

uint32_t transport_ranks(void)
{
    return all_ranks;
}

const char *transport_library(void)
{
    return "TCP sockets alone";
}

void *transport_alloc(size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);
    check(memory != NULL, "malloc");
    return memory;
}

void transport_blocking(int on)
{
    (void)on;
}

/* Moves as many bytes as the kernel allows; returns whether some are left. */
static bool move(struct peer *peer)
{
    struct way *out = &peer->out, *in = &peer->in;
    while (out->open && out->left > 0) {
        const ssize_t sent = send(peer->socket, out->at, out->left, MSG_NOSIGNAL);
        check(sent >= 0 || errno == EAGAIN, "send");
        out->open = sent == (ssize_t)out->left;
        out->at += sent > 0 ? sent : 0;
        out->left -= sent > 0 ? (size_t)sent : 0;
    }
    while (in->open && in->left > 0) {
        const ssize_t got = recv(peer->socket, in->at, in->left, 0);
        if (got == 0)
            transport_fail("another rank has ended");
        check(got > 0 || errno == EAGAIN, "recv");
        in->open = got == (ssize_t)in->left;
        in->at += got > 0 ? got : 0;
        in->left -= got > 0 ? (size_t)got : 0;
    }
    return out->left > 0 || in->left > 0;
}

static void start(struct way *way, const void *at, size_t bytes)
{
    *way = (struct way){.at = (char *)at, .left = bytes, .open = true};
}

/* Moves all bytes of the call. */
static void move_all(void)
{
    for (;;) {
        bool left = false;
        for (uint32_t at = 0; at < all_ranks; at++)
            left |= at != own_rank && move(&peers[at]);
        if (!left)
            return;
        struct epoll_event ready[16];
        const int count = epoll_wait(poller, ready, 16, -1);
        check(count >= 0 || errno == EINTR, "epoll_wait");
        for (int at = 0; at < count; at++) {
            struct peer *peer = &peers[ready[at].data.u32];
            peer->out.open |= (ready[at].events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0;
            peer->in.open |= (ready[at].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0;
        }
    }
}

void transport_allgather(const void *send, void *receive, size_t bytes)
{
    char *all = receive;
    if (all + own_rank * bytes != send)
        memcpy(all + own_rank * bytes, send, bytes);
    for (uint32_t at = 0; at < all_ranks; at++) {
        start(&peers[at].out, send, bytes);
        start(&peers[at].in, all + at * bytes, bytes);
    }
}

void transport_alltoallv(const void *send, const struct transport_blocks *outgoing, void *receive,
                         const struct transport_blocks *incoming)
{
    const char *mine = send;
    char *all = receive;
    memcpy(all + incoming->at[own_rank], mine + outgoing->at[own_rank], outgoing->bytes[own_rank]);
    for (uint32_t at = 0; at < all_ranks; at++) {
        start(&peers[at].out, mine + outgoing->at[at], outgoing->bytes[at]);
        start(&peers[at].in, all + incoming->at[at], incoming->bytes[at]);
    }
}

void transport_exchange(const double *mine, double *all, int count)
{
    transport_allgather(mine, all, (size_t)count * sizeof *mine);
    move_all();
}

void transport_barrier(void)
{
    double all[all_ranks], mine = 0;
    transport_exchange(&mine, all, 1);
}

/* Empty messages. Each message is one byte on a connection. It is moved in transport_wait, because a barrier may use
 * the connection before. */
static const struct transport_message *words;
static int words_count;

void transport_messages(const struct transport_message *messages, int count)
{
    for (int at = 0; at < count; at++)
        if (messages[at].bytes > 0)
            transport_fail("messages with bytes are not there over sockets alone");
    words = messages;
    words_count = count;
}

void transport_wait(void)
{
    static char word;
    for (int at = 0; at < words_count; at++) {
        struct peer *peer = &peers[words[at].peer];
        start(words[at].sent ? &peer->out : &peer->in, &word, 1);
    }
    words_count = 0;
    move_all();
}

/* Calls that are not measured over sockets alone, because there are several ways to carry them out. */
#define OTHER(name, ...)                                             \
    void name(__VA_ARGS__)                                           \
    {                                                                \
        transport_fail(#name " is not there over sockets alone");    \
    }

OTHER(transport_allgatherv, const void *, void *, const struct transport_blocks *)
OTHER(transport_alltoall, const void *, void *, size_t)
OTHER(transport_broadcast, void *, size_t, uint32_t)
OTHER(transport_gather, const void *, void *, size_t, uint32_t)
OTHER(transport_gatherv, const void *, void *, const struct transport_blocks *, uint32_t)
OTHER(transport_scatter, const void *, void *, size_t, uint32_t)
OTHER(transport_scatterv, const void *, const struct transport_blocks *, void *, uint32_t)
OTHER(transport_reduce, const void *, void *, size_t, uint32_t)
OTHER(transport_allreduce, const void *, void *, size_t)
OTHER(transport_reduce_scatter_block, const void *, void *, size_t)
OTHER(transport_scan, const void *, void *, size_t)
OTHER(transport_ibarrier, void)
OTHER(transport_send, uint32_t, const void *, size_t)
OTHER(transport_receive, uint32_t, void *, size_t)

_Noreturn void transport_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    complain(own_rank, format, arguments);
    va_end(arguments);
    _Exit(1);
}
