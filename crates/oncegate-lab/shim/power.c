/* Remembers, for files under one folder, what a power cut could still take away: for each file a log of what was
 * changed since its last sync, with what was there before. A test kills the process, and undoes some of it.
 *
 * The log of a file (or folder) has its inode's number as its name. It begins with a `struct head`; records follow.
 * Changes and their records are made under a lock that all processes share, so the log has the order of the changes.
 * A sync that finds nothing changed meanwhile empties the log. A sync that fails is remembered: Linux takes the pages
 * of a failed sync for clean, so no later sync brings them to the disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE = 1, TRUNCATE, CREATE, UNLINK, RENAME, SYNC, FAILED_SYNC };

struct head {
    uint64_t length; /* of the log, with this head */
    uint64_t failed; /* syncs */
};

struct record {
    uint64_t kind;
    uint64_t inode;
    uint64_t offset;      /* of a write; of a sync: up to where the log is synced */
    uint64_t length;      /* of a write; the new size, of a truncation */
    uint64_t size_before; /* of the file */
    uint64_t data_length; /* what follows: the bytes before, or names with a zero byte after each */
};

/* Shared with the test, which writes the first three. */
struct control {
    volatile int32_t sync_error;
    volatile int32_t write_error;
    volatile uint32_t sync_micros;
    uint32_t unused;
    uint64_t writes;
    uint64_t syncs;
};

struct tracked {
    uint64_t inode; /* 0: not ours */
    int log;        /* -1: only its faults are ours */
    int append;
};

#define FDS 65536
static struct tracked tracked[FDS];
#define LOGS 4096
static struct { uint64_t inode; int fd; } logs[LOGS];
static int logs_open;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX], log_folder[PATH_MAX];
static size_t folder_length;
static struct control *control;
static struct control no_control;

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

/* The function of libc behind ours. */
#define REAL(name)                                     \
    ({                                                 \
        static __typeof__(&name) found;                \
        if (found == NULL) found = real(#name);        \
        found;                                         \
    })

__attribute__((constructor)) static void start(void) {
    const char *under = getenv("ONCEGATE_TEST_POWER_FOLDER"), *into = getenv("ONCEGATE_TEST_POWER_LOG");
    control = &no_control;
    if (under == NULL || into == NULL || strlen(into) >= PATH_MAX || realpath(under, folder) == NULL) return;
    strcpy(log_folder, into);
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/control", log_folder);
    int fd = REAL(open)(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REAL(close)(fd);
    if (mapped == MAP_FAILED) return;
    control = mapped;
    folder_length = strlen(folder);
}

/* The whole path, if it is in the folder or is the folder itself. */
static int is_ours(const char *path, char whole[PATH_MAX]) {
    if (folder_length == 0) return 0;
    if (realpath(path, whole) == NULL) {
        /* It may not be there yet: its folder is. */
        char parent[PATH_MAX];
        const char *slash = strrchr(path, '/');
        const char *name = slash == NULL ? path : slash + 1;
        snprintf(parent, sizeof parent, "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1, slash == NULL ? "." : path);
        if (realpath(parent, whole) == NULL || strlen(whole) + strlen(name) + 2 > PATH_MAX) return 0;
        strcat(whole, "/");
        strcat(whole, name);
    }
    return strncmp(whole, folder, folder_length) == 0 && (whole[folder_length] == '/' || whole[folder_length] == 0);
}

static int is_shared_memory(const char *path) {
    size_t length = strlen(path);
    return length > 4 && strcmp(path + length - 4, "-shm") == 0;
}

/* With the mutex held. */
static int log_of(uint64_t inode) {
    for (int at = 0; at < logs_open; at++)
        if (logs[at].inode == inode) return logs[at].fd;
    if (logs_open == LOGS) abort();
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%llu.log", log_folder, (unsigned long long)inode);
    int fd = REAL(open)(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) abort();
    logs[logs_open].inode = inode;
    logs[logs_open++].fd = fd;
    return fd;
}

static void lock(int log) {
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    while (fcntl(log, F_OFD_SETLKW, &whole) != 0)
        if (errno != EINTR) abort();
}

static void unlock(int log) {
    struct flock whole = { .l_type = F_UNLCK, .l_whence = SEEK_SET };
    fcntl(log, F_OFD_SETLK, &whole);
}

static struct head head_of(int log) {
    struct head head = { 0 };
    if (pread(log, &head, sizeof head, 0) != sizeof head) head.length = sizeof head;
    return head;
}

static void set_head(int log, struct head head) {
    if (REAL(pwrite)(log, &head, sizeof head, 0) != sizeof head) abort();
}

/* With the lock held. Writes the log's length last, so that a process that is killed here leaves no half-written record. */
static void append(int log, struct record record, const void *data) {
    struct head head = head_of(log);
    if (REAL(pwrite)(log, &record, sizeof record, head.length) != sizeof record) abort();
    if (record.data_length != 0 &&
        REAL(pwrite)(log, data, record.data_length, head.length + sizeof record) != (ssize_t)record.data_length)
        abort();
    head.length += sizeof record + record.data_length;
    head.failed += record.kind == FAILED_SYNC;
    set_head(log, head);
}

/* A change of a folder, noted in the folder's own log. */
static void note(const char *path, struct record record, const char *names[3]) {
    char parent[PATH_MAX], data[3 * PATH_MAX];
    struct stat found;
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (stat(parent, &found) != 0) return;
    for (int at = 0; at < 3 && names[at] != NULL; at++) {
        strcpy(data + record.data_length, names[at]);
        record.data_length += strlen(names[at]) + 1;
    }
    int log = log_of(found.st_ino);
    lock(log);
    append(log, record, data);
    unlock(log);
}

/* Keeps a file that is about to lose its name. Writes the new name to `saved` if that worked. */
static int save(const char *path, char saved[PATH_MAX + 64]) {
    static unsigned count;
    snprintf(saved, PATH_MAX + 64, "%s/saved-%d-%u", log_folder, getpid(), count++);
    return link(path, saved) == 0;
}

/* Without the mutex: a descriptor is entered before its opener has it, and cleared by its closer. */
static struct tracked of(int fd) {
    struct tracked none = { 0, -1, 0 };
    return fd < 0 || fd >= FDS ? none : tracked[fd];
}

static int open_tracked(int folder_fd, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    __typeof__(&openat) really = REAL(openat);
    if ((folder_fd != AT_FDCWD && path[0] != '/') || !is_ours(path, whole)) return really(folder_fd, path, flags, mode);
    if ((flags & O_CREAT) && control->write_error != 0 && access(whole, F_OK) != 0) {
        errno = control->write_error;
        return -1;
    }
    pthread_mutex_lock(&mutex);
    int is_new = (flags & O_CREAT) && access(whole, F_OK) != 0;
    /* The shim reads the old bytes before each write, so the descriptor has to be readable. */
    int readable = (flags & O_ACCMODE) == O_WRONLY ? (flags & ~O_ACCMODE) | O_RDWR : flags;
    int fd = really(folder_fd, path, readable & ~O_TRUNC, mode);
    int failed = errno;
    struct stat found;
    if (fd >= 0 && fd < FDS && fstat(fd, &found) == 0) {
        int is_logged = !is_shared_memory(whole);
        tracked[fd].inode = found.st_ino;
        tracked[fd].append = (flags & O_APPEND) != 0;
        tracked[fd].log = is_logged ? log_of(found.st_ino) : -1;
        if (is_new && is_logged) {
            struct record record = { .kind = CREATE, .inode = found.st_ino };
            const char *names[3] = { whole };
            note(whole, record, names);
        }
    }
    pthread_mutex_unlock(&mutex);
    if (fd >= 0 && (flags & O_TRUNC) && ftruncate(fd, 0) != 0) {
        close(fd);
        return -1;
    }
    errno = failed;
    return fd;
}

#define WITH_MODE(flags, mode)                                 \
    mode_t mode = 0;                                           \
    if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                          \
        va_start(rest, flags);                                 \
        mode = va_arg(rest, mode_t);                           \
        va_end(rest);                                          \
    }

int open(const char *path, int flags, ...) {
    WITH_MODE(flags, mode)
    return open_tracked(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    WITH_MODE(flags, mode)
    return open_tracked(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int folder_fd, const char *path, int flags, ...) {
    WITH_MODE(flags, mode)
    return open_tracked(folder_fd, path, flags, mode);
}

int openat64(int folder_fd, const char *path, int flags, ...) {
    WITH_MODE(flags, mode)
    return open_tracked(folder_fd, path, flags | O_LARGEFILE, mode);
}

int close(int fd) {
    if (fd >= 0 && fd < FDS) {
        pthread_mutex_lock(&mutex);
        tracked[fd].inode = 0;
        pthread_mutex_unlock(&mutex);
    }
    return REAL(close)(fd);
}

int dup2(int fd, int to) {
    int result = REAL(dup2)(fd, to);
    if (result >= 0 && fd >= 0 && fd < FDS && to < FDS) {
        pthread_mutex_lock(&mutex);
        tracked[to] = tracked[fd];
        pthread_mutex_unlock(&mutex);
    }
    return result;
}

/* Writes at an offset, or at the file's current position (-1), after a record of the bytes that are overwritten. */
static ssize_t write_at(int fd, const void *bytes, size_t length, off_t offset) {
    struct tracked file = of(fd);
    if (file.inode != 0 && control->write_error != 0) {
        errno = control->write_error;
        return -1;
    }
    if (file.inode == 0 || file.log < 0 || length == 0)
        return offset < 0 ? REAL(write)(fd, bytes, length) : REAL(pwrite)(fd, bytes, length, offset);
    pthread_mutex_lock(&mutex);
    lock(file.log);
    struct stat found;
    if (fstat(fd, &found) != 0) abort();
    off_t at = file.append ? found.st_size : offset < 0 ? lseek(fd, 0, SEEK_CUR) : offset;
    uint64_t kept = at >= found.st_size ? 0 : (uint64_t)(found.st_size - at);
    if (kept > length) kept = length;
    char *before = malloc(kept + 1);
    if (before == NULL) abort();
    if (pread(fd, before, kept, at) == (ssize_t)kept) {
        struct record record = { WRITE, file.inode, at, length, found.st_size, kept };
        append(file.log, record, before);
        __atomic_fetch_add(&control->writes, 1, __ATOMIC_RELAXED);
    }
    free(before);
    ssize_t written = offset < 0 ? REAL(write)(fd, bytes, length) : REAL(pwrite)(fd, bytes, length, offset);
    int failed = errno;
    unlock(file.log);
    pthread_mutex_unlock(&mutex);
    errno = failed;
    return written;
}

ssize_t write(int fd, const void *bytes, size_t length) {
    if (of(fd).inode == 0) return REAL(write)(fd, bytes, length);
    return write_at(fd, bytes, length, -1);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return write_at(fd, bytes, length, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset) {
    return write_at(fd, bytes, length, offset);
}

/* Writes the parts one after the other: a power cut may come between them anyway. */
static ssize_t write_all(int fd, const struct iovec *parts, int count, off_t offset) {
    ssize_t written = 0;
    for (int at = 0; at < count; at++) {
        ssize_t part = write_at(fd, parts[at].iov_base, parts[at].iov_len, offset < 0 ? -1 : offset + written);
        if (part < 0) return written > 0 ? written : -1;
        written += part;
        if ((size_t)part < parts[at].iov_len) break;
    }
    return written;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (of(fd).inode == 0) return REAL(writev)(fd, parts, count);
    return write_all(fd, parts, count, -1);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    if (of(fd).inode == 0) return REAL(pwritev)(fd, parts, count, offset);
    return write_all(fd, parts, count, offset);
}

static int truncate_tracked(int fd, off_t size) {
    struct tracked file = of(fd);
    if (file.inode == 0 || file.log < 0) return REAL(ftruncate)(fd, size);
    pthread_mutex_lock(&mutex);
    lock(file.log);
    struct stat found;
    if (fstat(fd, &found) != 0) abort();
    uint64_t lost = size >= found.st_size ? 0 : (uint64_t)(found.st_size - size);
    char *before = malloc(lost + 1);
    if (before == NULL) abort();
    if (pread(fd, before, lost, size) == (ssize_t)lost) {
        struct record record = { TRUNCATE, file.inode, 0, size, found.st_size, lost };
        append(file.log, record, before);
    }
    free(before);
    int result = REAL(ftruncate)(fd, size);
    int failed = errno;
    unlock(file.log);
    pthread_mutex_unlock(&mutex);
    errno = failed;
    return result;
}

int ftruncate(int fd, off_t size) { return truncate_tracked(fd, size); }
int ftruncate64(int fd, off_t size) { return truncate_tracked(fd, size); }

/* Does not write to the disk: the page cache outlives the process, and the log says what a power cut would leave. */
static int sync_tracked(int fd, int (*really)(int)) {
    struct tracked file = of(fd);
    if (file.inode == 0 || file.log < 0) return really(fd);
    /* A negative control: as if the process never synced. */
    if (getenv("ONCEGATE_TEST_POWER_NO_SYNC") != NULL) return 0;
    pthread_mutex_lock(&mutex);
    lock(file.log);
    uint64_t up_to = head_of(file.log).length;
    unlock(file.log);
    pthread_mutex_unlock(&mutex);
    /* A disk takes time to sync. The power may fail meanwhile, and others may write. */
    if (control->sync_micros != 0) usleep(control->sync_micros);
    int error = control->sync_error;
    __atomic_fetch_add(&control->syncs, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&mutex);
    lock(file.log);
    struct head head = head_of(file.log);
    if (error == 0 && head.failed == 0 && head.length == up_to) {
        head.length = sizeof head;
        set_head(file.log, head);
    } else {
        struct record record = { .kind = error == 0 ? SYNC : FAILED_SYNC, .inode = file.inode, .offset = up_to };
        append(file.log, record, NULL);
    }
    unlock(file.log);
    pthread_mutex_unlock(&mutex);
    errno = error;
    return error == 0 ? 0 : -1;
}

int fsync(int fd) { return sync_tracked(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_tracked(fd, REAL(fdatasync)); }

int unlink(const char *path) {
    char whole[PATH_MAX], saved[PATH_MAX + 64];
    struct stat found;
    if (!is_ours(path, whole) || is_shared_memory(whole) || stat(whole, &found) != 0) return REAL(unlink)(path);
    pthread_mutex_lock(&mutex);
    if (save(whole, saved)) {
        struct record record = { .kind = UNLINK, .inode = found.st_ino };
        const char *names[3] = { whole, saved };
        note(whole, record, names);
    }
    int result = REAL(unlink)(path), failed = errno;
    pthread_mutex_unlock(&mutex);
    errno = failed;
    return result;
}

int rename(const char *from, const char *to) {
    char whole_from[PATH_MAX], whole_to[PATH_MAX], saved[PATH_MAX + 64];
    struct stat found;
    if (!is_ours(from, whole_from) || !is_ours(to, whole_to) || stat(whole_from, &found) != 0)
        return REAL(rename)(from, to);
    pthread_mutex_lock(&mutex);
    struct record record = { .kind = RENAME, .inode = found.st_ino };
    const char *names[3] = { whole_from, whole_to, access(whole_to, F_OK) == 0 && save(whole_to, saved) ? saved : NULL };
    note(whole_to, record, names);
    int result = REAL(rename)(from, to), failed = errno;
    pthread_mutex_unlock(&mutex);
    errno = failed;
    return result;
}
