/* Shifts the wall clock and the clock since boot of the process that preloads this, by two numbers that a
 * shared file holds: microseconds for CLOCK_REALTIME, then microseconds for CLOCK_BOOTTIME. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct shift {
    volatile int64_t wall_micros;
    volatile int64_t boot_micros;
};

static struct shift none;
static struct shift *shift = &none;

__attribute__((constructor)) static void map_shift(void) {
    const char *path = getenv("ONCEGATE_TEST_CLOCK_FILE");
    if (path == NULL) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof(struct shift), PROT_READ, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (mapped != MAP_FAILED) shift = mapped;
}

static void add(struct timespec *time, int64_t micros) {
    int64_t nanos = time->tv_nsec + micros % 1000000 * 1000;
    time->tv_sec += micros / 1000000;
    if (nanos < 0) {
        nanos += 1000000000;
        time->tv_sec -= 1;
    } else if (nanos >= 1000000000) {
        nanos -= 1000000000;
        time->tv_sec += 1;
    }
    time->tv_nsec = nanos;
}

int clock_gettime(clockid_t id, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real != NULL ? real(id, time) : (int)syscall(SYS_clock_gettime, id, time);
    if (result != 0) return result;
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) add(time, shift->wall_micros);
    if (id == CLOCK_BOOTTIME) add(time, shift->boot_micros);
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (seconds != NULL) *seconds = now.tv_sec;
    return now.tv_sec;
}
