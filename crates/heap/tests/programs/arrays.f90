! arrays.f90: ALLOCATE, automatic reallocation and MOVE_ALLOC below the preload library.
program arrays
  implicit none
  real(8), allocatable :: matrix(:, :), vector(:), moved(:)
  integer :: at, status
  allocate (matrix(600, 600), vector(600))
  do at = 1, 600
    matrix(:, at) = [(1d0 / (at + status), status = 1, 600)]
    vector(at) = at
  end do
  do at = 1, 20
    vector = matmul(matrix, vector)
    vector = vector / sum(vector)
  end do
  do at = 1, 12
    vector = [vector, vector / 2]
  end do
  call move_alloc(vector, moved)
  allocate (vector(2_8**58), stat=status)
  print '(i0, 1x, es22.15, 1x, l1)', size(moved), sum(moved), status /= 0
end program
