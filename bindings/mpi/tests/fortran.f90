! fortran.f90: the same calls through `use mpi`; compiled with -DF08 through `use mpi_f08`.
! Prints TAP on rank 0.
program fortran_allgather
#ifdef F08
  use mpi_f08
#ifdef EXTENSION
  use mpi_f08_ext
#endif
#define COMM_HANDLE type(MPI_Comm)
#define REQUEST_HANDLE type(MPI_Request)
#define TYPE_HANDLE type(MPI_Datatype)
#else
  use mpi
#ifdef EXTENSION
  use mpi_ext
#endif
#define COMM_HANDLE integer
#define REQUEST_HANDLE integer
#define TYPE_HANDLE integer
#endif
  use iso_c_binding
  implicit none
  integer, parameter :: n = 1000
  integer :: rank, ranks, ierr, i, test, bad, provided
  COMM_HANDLE :: half, row, grid
  logical :: remain(2), periods(2)

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided, ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  test = 0
  bad = 0
  if (rank == 0) print '(a)', '1..17'

  call report_test(gathered(MPI_COMM_WORLD, 0), 'allgather')
  call report_test(gathered(MPI_COMM_WORLD, 1), 'iallgather and wait')
  call report_test(gathered(MPI_COMM_WORLD, 2), 'iallgather in place and waitany')
  call report_test(gathered(MPI_COMM_WORLD, 3), 'iallgather, waitall mixed with a native request')
  call report_test(gathered(MPI_COMM_WORLD, 4), 'iallgather of a vector type from MPI_BOTTOM, waitsome')
  call report_test(broadcast(.false.), 'bcast')
  call report_test(broadcast(.true.), 'ibcast and wait')
  call report_test(exchanged(.false.), 'alltoall and alltoallv')
  call report_test(exchanged(.true.), 'ialltoall and ialltoallv in place, waitall')
  call report_test(rooted(.false.), 'gather, gatherv, scatter and scatterv')
  call report_test(rooted(.true.), 'igather, igatherv, iscatter and iscatterv in place, waitall')
  call report_test(reduced(.false.), 'reduce, allreduce, reduce_scatter(_block), scan, exscan and barrier')
  call report_test(reduced(.true.), 'the same nonblocking and in place, waitall')
  call report_test(started(), 'allgather and scatterv, started again and again')
  call report_test(allocation(), 'memory of MPI_Alloc_mem')
  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, ierr)
  call report_test(gathered(half, 1), 'communicator from comm_split')
  periods = .false.
  remain = [.false., .true.]
  call MPI_Cart_create(half, 2, [1, ranks / 2], periods, .false., grid, ierr)
  call MPI_Cart_sub(grid, remain, row, ierr)
  call report_test(gathered(row, 3), 'communicator from cart_sub')
  call MPI_Comm_free(row, ierr)
  call MPI_Comm_free(grid, ierr)
  call MPI_Comm_free(half, ierr)
  call MPI_Finalize(ierr)
  if (bad > 0) stop 1

contains

  subroutine report_test(good, name)
    logical, intent(in) :: good
    character(*), intent(in) :: name
    integer :: mine, all
    mine = merge(1, 0, good)
    call MPI_Allreduce(mine, all, 1, MPI_INTEGER, MPI_MIN, MPI_COMM_WORLD, ierr)
    test = test + 1
    if (all == 0) bad = bad + 1
    if (rank == 0) print '(a,i0,a,a)', trim(merge('ok    ', 'not ok', all == 1)) // ' ', test, ' - ', name
  end subroutine

  logical function broadcast(nonblocking)
    logical, intent(in) :: nonblocking
    integer, asynchronous :: shared(n)
    integer :: root
    REQUEST_HANDLE :: request
    broadcast = .true.
    do root = 0, ranks - 1
      shared = -1
      if (rank == root) shared = [(root * 10007 + i, i = 1, n)]
      if (nonblocking) then
        call MPI_Ibcast(shared, n, MPI_INTEGER, root, MPI_COMM_WORLD, request, ierr)
        call MPI_Wait(request, MPI_STATUS_IGNORE, ierr)
      else
        call MPI_Bcast(shared, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
      end if
      broadcast = broadcast .and. ierr == MPI_SUCCESS .and. all(shared == [(root * 10007 + i, i = 1, n)])
    end do
  end function

  ! Even blocks, then blocks in the reverse order of ranks.
  logical function exchanged(nonblocking)
    logical, intent(in) :: nonblocking
    integer, asynchronous :: send(n * ranks), even(n * ranks), uneven(n * ranks)
    integer, asynchronous :: counts(ranks), forth(ranks), back(ranks)
    integer :: of
    REQUEST_HANDLE :: requests(2)
    counts = n
    forth = [(of * n, of = 0, ranks - 1)]
    back = [((ranks - 1 - of) * n, of = 0, ranks - 1)]
    do of = 0, ranks - 1
      send(of * n + 1:of * n + n) = [(rank * 10007 + of * 101 + i, i = 1, n)]
    end do
    even = -1
    uneven = -1
    if (nonblocking) then
      uneven = send
      call MPI_Ialltoall(send, n, MPI_INTEGER, even, n, MPI_INTEGER, MPI_COMM_WORLD, requests(1), ierr)
      call MPI_Ialltoallv(MPI_IN_PLACE, counts, forth, MPI_INTEGER, uneven, counts, forth, MPI_INTEGER, &
                          MPI_COMM_WORLD, requests(2), ierr)
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierr)
      back = forth
    else
      call MPI_Allgatherv(send, n, MPI_INTEGER, uneven, counts, back, MPI_INTEGER, MPI_COMM_WORLD, ierr)
      call MPI_Alltoall(send, n, MPI_INTEGER, even, n, MPI_INTEGER, MPI_COMM_WORLD, ierr)
      call MPI_Alltoallv(send, counts, forth, MPI_INTEGER, uneven, counts, back, MPI_INTEGER, MPI_COMM_WORLD, ierr)
    end if
    exchanged = ierr == MPI_SUCCESS
    do of = 0, ranks - 1
      exchanged = exchanged .and. all(even(of * n + 1:of * n + n) == [(of * 10007 + rank * 101 + i, i = 1, n)])
      exchanged = exchanged .and. &
        all(uneven(back(of + 1) + 1:back(of + 1) + n) == [(of * 10007 + rank * 101 + i, i = 1, n)])
    end do
  end function

  ! To the root and back, even blocks and blocks in the reverse order of ranks.
  logical function rooted(nonblocking)
    logical, intent(in) :: nonblocking
    integer, asynchronous :: mine(n), even(n * ranks), uneven(n * ranks), first(n), second(n)
    integer, asynchronous :: counts(ranks), places(ranks)
    integer :: of, root
    REQUEST_HANDLE :: requests(2)
    root = ranks - 1
    counts = n
    places = [((ranks - 1 - of) * n, of = 0, ranks - 1)]
    mine = [(rank * 10007 + i, i = 1, n)]
    even = -1
    uneven = -1
    first = -1
    second = -1
    if (nonblocking .and. rank == root) then
      even(root * n + 1:root * n + n) = mine
      uneven(places(root + 1) + 1:places(root + 1) + n) = mine
      call MPI_Igather(MPI_IN_PLACE, n, MPI_INTEGER, even, n, MPI_INTEGER, root, MPI_COMM_WORLD, requests(1), ierr)
      call MPI_Igatherv(MPI_IN_PLACE, n, MPI_INTEGER, uneven, counts, places, MPI_INTEGER, root, MPI_COMM_WORLD, &
                        requests(2), ierr)
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierr)
      first = mine
      second = mine
      call MPI_Iscatter(even, n, MPI_INTEGER, MPI_IN_PLACE, n, MPI_INTEGER, root, MPI_COMM_WORLD, requests(1), ierr)
      call MPI_Iscatterv(uneven, counts, places, MPI_INTEGER, MPI_IN_PLACE, n, MPI_INTEGER, root, MPI_COMM_WORLD, &
                         requests(2), ierr)
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierr)
    else if (nonblocking) then
      call MPI_Igather(mine, n, MPI_INTEGER, even, n, MPI_INTEGER, root, MPI_COMM_WORLD, requests(1), ierr)
      call MPI_Igatherv(mine, n, MPI_INTEGER, uneven, counts, places, MPI_INTEGER, root, MPI_COMM_WORLD, requests(2), &
                        ierr)
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierr)
      call MPI_Iscatter(even, n, MPI_INTEGER, first, n, MPI_INTEGER, root, MPI_COMM_WORLD, requests(1), ierr)
      call MPI_Iscatterv(uneven, counts, places, MPI_INTEGER, second, n, MPI_INTEGER, root, MPI_COMM_WORLD, &
                         requests(2), ierr)
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierr)
    else
      call MPI_Gather(mine, n, MPI_INTEGER, even, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
      call MPI_Gatherv(mine, n, MPI_INTEGER, uneven, counts, places, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
      call MPI_Scatter(even, n, MPI_INTEGER, first, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
      call MPI_Scatterv(uneven, counts, places, MPI_INTEGER, second, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
    end if
    rooted = ierr == MPI_SUCCESS .and. all(first == mine) .and. all(second == mine)
    do of = 0, ranks - 1
      if (rank /= root) exit
      rooted = rooted .and. all(even(of * n + 1:of * n + n) == [(of * 10007 + i, i = 1, n)])
      rooted = rooted .and. all(uneven(places(of + 1) + 1:places(of + 1) + n) == [(of * 10007 + i, i = 1, n)])
    end do
  end function

  ! Sums, the largest with its place, and blocks of sums.
  logical function reduced(nonblocking)
    logical, intent(in) :: nonblocking
    integer, asynchronous :: mine(n), all_of(n * ranks), summed(n), block(n), second(n), before(n), upto(n), counts(ranks)
    real(8), asynchronous :: values(n), largest(n)
    integer, asynchronous :: pair(2), farthest(2)
    integer :: of, least, most
    REQUEST_HANDLE :: requests(8)
    counts = n
    least = ranks * (ranks - 1) / 2
    most = rank * (rank + 1) / 2
    mine = [(rank + i, i = 1, n)]
    all_of = [((rank + of * 10 + i, i = 1, n), of = 0, ranks - 1)]
    values = rank * 0.5d0
    pair = [mod(rank * 3 + 1, ranks), rank]
    summed = mine
    block = -1
    second = -1
    largest = -1
    before = -1
    upto = -1
    if (nonblocking) then
      call MPI_Iallreduce(MPI_IN_PLACE, summed, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1), ierr)
      call MPI_Ireduce(values, largest, n, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD, requests(2), ierr)
      call MPI_Ireduce_scatter(all_of, block, counts, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(3), ierr)
      call MPI_Ireduce_scatter_block(all_of, second, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(4), ierr)
      call MPI_Iscan(mine, upto, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(5), ierr)
      call MPI_Iexscan(mine, before, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(6), ierr)
      call MPI_Iallreduce(pair, farthest, 1, MPI_2INTEGER, MPI_MAXLOC, MPI_COMM_WORLD, requests(7), ierr)
      call MPI_Ibarrier(MPI_COMM_WORLD, requests(8), ierr)
      call MPI_Waitall(8, requests, MPI_STATUSES_IGNORE, ierr)
    else
      call MPI_Allreduce(mine, summed, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
      call MPI_Reduce(values, largest, n, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD, ierr)
      call MPI_Reduce_scatter(all_of, block, counts, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
      call MPI_Reduce_scatter_block(all_of, second, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
      call MPI_Scan(mine, upto, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
      call MPI_Exscan(mine, before, n, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
      call MPI_Allreduce(pair, farthest, 1, MPI_2INTEGER, MPI_MAXLOC, MPI_COMM_WORLD, ierr)
      call MPI_Barrier(MPI_COMM_WORLD, ierr)
    end if
    reduced = ierr == MPI_SUCCESS .and. all(summed == [(least + ranks * i, i = 1, n)])
    reduced = reduced .and. (rank /= 0 .or. all(largest == (ranks - 1) * 0.5d0))
    reduced = reduced .and. all(block == [(least + ranks * (rank * 10 + i), i = 1, n)]) .and. all(second == block)
    reduced = reduced .and. all(upto == [(most + (rank + 1) * i, i = 1, n)])
    reduced = reduced .and. (rank == 0 .or. all(before == [(most - rank + rank * i, i = 1, n)]))
    reduced = reduced .and. farthest(1) == maxval([(mod(of * 3 + 1, ranks), of = 0, ranks - 1)])
    reduced = reduced .and. mod(farthest(2) * 3 + 1, ranks) == farthest(1)
  end function

  ! Persistent requests, where this Open MPI has them.
  logical function started()
    integer, asynchronous :: mine(n), all_of(n * ranks), own(n), counts(ranks), places(ranks)
    integer :: of, turn
    REQUEST_HANDLE :: requests(2)
    started = .true.
#ifdef EXTENSION
    counts = n
    places = [(of * n, of = 0, ranks - 1)]
    call MPIX_Allgather_init(mine, n, MPI_INTEGER, all_of, n, MPI_INTEGER, MPI_COMM_WORLD, MPI_INFO_NULL, requests(1), &
                             ierr)
    call MPIX_Scatterv_init(all_of, counts, places, MPI_INTEGER, own, n, MPI_INTEGER, 0, MPI_COMM_WORLD, &
                            MPI_INFO_NULL, requests(2), ierr)
    do turn = 1, 5
      mine = [(rank * 10007 + i * turn, i = 1, n)]
      own = -1
      call MPI_Start(requests(1), ierr)
      call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
      call MPI_Startall(1, requests(2:2), ierr)
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierr)
      started = started .and. ierr == MPI_SUCCESS .and. all(own == mine)
    end do
    call MPI_Request_free(requests(1), ierr)
    call MPI_Request_free(requests(2), ierr)
    started = started .and. requests(1) == MPI_REQUEST_NULL .and. requests(2) == MPI_REQUEST_NULL
#endif
  end function

  logical function allocation()
    integer, pointer :: shared(:)
    type(c_ptr) :: memory
    integer(MPI_ADDRESS_KIND) :: bytes
    bytes = 4 * n * ranks
    call MPI_Alloc_mem(bytes, MPI_INFO_NULL, memory, ierr)
    allocation = ierr == MPI_SUCCESS
    call c_f_pointer(memory, shared, [n * ranks])
    shared = -1
    shared(rank * n + 1:rank * n + n) = [(rank * 10007 + i, i = 1, n)]
    call MPI_Allgather(MPI_IN_PLACE, 0, MPI_INTEGER, shared, n, MPI_INTEGER, MPI_COMM_WORLD, ierr)
    do i = 0, n * ranks - 1
      allocation = allocation .and. shared(i + 1) == i / n * 10007 + mod(i, n) + 1
    end do
    call MPI_Free_mem(shared, ierr)
    allocation = allocation .and. ierr == MPI_SUCCESS
  end function

  logical function gathered(comm, form)
    COMM_HANDLE, intent(in) :: comm
    integer, intent(in) :: form
    integer, asynchronous :: send(n), heard
    integer, allocatable, asynchronous, target :: receive(:)
    integer :: me, members, of, outcount, which(2), token
    integer(MPI_ADDRESS_KIND) :: at(1)
    REQUEST_HANDLE :: requests(2)
    TYPE_HANDLE :: absolute
    call MPI_Comm_rank(comm, me, ierr)
    call MPI_Comm_size(comm, members, ierr)
    allocate(receive(n * members))
    receive = -1
    send = [(me * 10007 + i, i = 1, n)]
    requests = MPI_REQUEST_NULL
    heard = -1
    token = me
    select case (form)
    case (0)
      call MPI_Allgather(send, n, MPI_INTEGER, receive, n, MPI_INTEGER, comm, ierr)
    case (1)
      call MPI_Iallgather(send, n, MPI_INTEGER, receive, n, MPI_INTEGER, comm, requests(1), ierr)
      call MPI_Wait(requests(1), MPI_STATUS_IGNORE, ierr)
    case (2)
      receive(me * n + 1:me * n + n) = send
      call MPI_Iallgather(MPI_IN_PLACE, 0, MPI_INTEGER, receive, n, MPI_INTEGER, comm, requests(2), ierr)
      call MPI_Waitany(2, requests, of, MPI_STATUS_IGNORE, ierr)
      if (of /= 2) receive = -2
    case (3)
      call MPI_Irecv(heard, 1, MPI_INTEGER, mod(me + 1, members), 1, comm, requests(1), ierr)
      call MPI_Iallgather(send, n, MPI_INTEGER, receive, n, MPI_INTEGER, comm, requests(2), ierr)
      call MPI_Send(token, 1, MPI_INTEGER, mod(me + members - 1, members), 1, comm, ierr)
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierr)
      if (heard /= mod(me + 1, members)) receive = -2
    case (4)
      call MPI_Get_address(receive, at(1), ierr)
      call MPI_Type_create_hindexed(1, [n], at, MPI_INTEGER, absolute, ierr)
      call MPI_Type_commit(absolute, ierr)
      call MPI_Iallgather(send, n, MPI_INTEGER, MPI_BOTTOM, 1, absolute, comm, requests(1), ierr)
      call MPI_Type_free(absolute, ierr)
      call MPI_Waitsome(2, requests, outcount, which, MPI_STATUSES_IGNORE, ierr)
      if (outcount /= 1 .or. which(1) /= 1) receive = -2
    end select
    gathered = ierr == MPI_SUCCESS
    do of = 0, members - 1
      gathered = gathered .and. all(receive(of * n + 1:of * n + n) == [(of * 10007 + i, i = 1, n)])
    end do
  end function
end program
