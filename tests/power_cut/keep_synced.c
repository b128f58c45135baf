/* keep_synced ROOT DISK COMMAND...: run COMMAND and keep in DISK what it has synced of the files under ROOT.
 *
 * A seccomp filter stops every fsync and fdatasync of COMMAND and its descendants, whatever language they are written
 * in (Go programs make their system calls without libc). A supervisor process copies the file, or lists the directory,
 * into DISK and lets the call succeed. A power cut is then: stop the supervisors, kill the rest, and build ROOT anew
 * from DISK; see __init__.py.
 *
 *   DISK/data/KEY     content of an inode at its last sync; KEY is inode and birth time, as inode numbers come again
 *   DISK/names/DIR    one "KEY name" a line, the last one counts: which names are on disk. '/' in DIR is '%'
 *   DISK/pids         the supervisors
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *root, *disk;

static void die(const char *what) { perror(what); exit(99); }

static int key_of(int fd, const char *name, char *key, size_t size, mode_t *mode) {
    struct statx found;
    int flags = *name ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH;
    if (statx(fd, name, flags, STATX_BASIC_STATS | STATX_BTIME, &found) != 0) return -1;
    snprintf(key, size, "%llu-%lld.%u", (unsigned long long)found.stx_ino, (long long)found.stx_btime.tv_sec,
             found.stx_btime.tv_nsec);
    *mode = found.stx_mode;
    return 0;
}

static FILE *open_names(const char *directory, const char *how, char *path, size_t size) {
    int at = snprintf(path, size, "%s/names/", disk);
    for (const char *from = directory; *from && (size_t)at + 1 < size; from++) path[at++] = *from == '/' ? '%' : *from;
    path[at] = 0;
    if (*how == 'w') strncat(path, ".new", size - strlen(path) - 1);
    return fopen(path, how);
}

static int keep_directory(int fd, const char *path) {
    char file[8192], final[8192], key[96];
    FILE *names = open_names(path, "w", file, sizeof file);
    DIR *entries = fdopendir(openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (names == NULL || entries == NULL) return -1;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        mode_t mode;
        if (key_of(fd, entry->d_name, key, sizeof key, &mode) == 0 && S_ISREG(mode))
            fprintf(names, "%s %s\n", key, entry->d_name);
    }
    closedir(entries);
    if (fclose(names) != 0) return -1;
    strcpy(final, file);
    final[strlen(final) - 4] = 0;
    return rename(file, final);
}

static int keep_file(int fd, char *path, const char *key) {
    char part[4096], final[4096], file[8192];
    snprintf(final, sizeof final, "%s/data/%s", disk, key);
    snprintf(part, sizeof part, "%s.new", final);
    int to = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (to < 0) return -1;
    off_t from = 0;
    ssize_t done;
    while ((done = copy_file_range(fd, &from, to, NULL, 1 << 26, 0)) > 0) {}
    close(to);
    if (done < 0 || rename(part, final) != 0) return -1;
    char *slash = strrchr(path, '/');
    if (strstr(slash, " (deleted)") != NULL) return 0;
    *slash = 0;
    FILE *names = open_names(path, "a", file, sizeof file);
    if (names == NULL) return -1;
    fprintf(names, "%s %s\n", key, slash + 1);
    return fclose(names);
}

/* 0, or -1 with errno. */
static int keep(pid_t pid, int number) {
    char link[64], path[4096], key[96];
    snprintf(link, sizeof link, "/proc/%d/fd/%d", pid, number);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) { errno = EBADF; return -1; }
    path[length] = 0;
    size_t prefix = strlen(root);
    if (strncmp(path, root, prefix) != 0 || (path[prefix] != '/' && path[prefix] != 0)) return 0;
    int fd = open(link, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    mode_t mode;
    char lock_path[4096];
    snprintf(lock_path, sizeof lock_path, "%s/lock", disk);
    int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    flock(lock, LOCK_EX); /* an older copy must not replace a newer one */
    int result = key_of(fd, "", key, sizeof key, &mode);
    if (result == 0 && S_ISDIR(mode)) result = keep_directory(fd, path);
    else if (result == 0 && S_ISREG(mode)) result = keep_file(fd, path, key);
    int error = errno;
    close(lock);
    close(fd);
    errno = error;
    return result;
}

static void supervise(int listener) {
    struct seccomp_notif_sizes sizes;
    if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) != 0) die("seccomp sizes");
    struct seccomp_notif *asked = calloc(1, sizes.seccomp_notif + 256);
    struct seccomp_notif_resp *answer = calloc(1, sizes.seccomp_notif_resp + 256);
    struct pollfd watched = {.fd = listener, .events = POLLIN};
    while (poll(&watched, 1, -1) >= 0 && !(watched.revents & POLLHUP)) {
        memset(asked, 0, sizes.seccomp_notif);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, asked) != 0) continue;
        memset(answer, 0, sizes.seccomp_notif_resp);
        answer->id = asked->id;
        answer->error = keep((pid_t)asked->pid, (int)asked->data.args[0]) == 0 ? 0 : -errno;
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, answer);
    }
    exit(0);
}

static int install_filter(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    if (geteuid() != 0) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* The listener reaches the supervisor, which must not be under the filter itself, over a socket pair. */
static void send_fd(int socket, int fd) {
    char byte = 0, space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(socket, &message, 0) < 0) die("sendmsg");
}

static int receive_fd(int socket) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    int fd = -1;
    if (recvmsg(socket, &message, 0) <= 0 || CMSG_FIRSTHDR(&message) == NULL) exit(99);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void become_supervisor(int socket) {
    char path[4096];
    setsid();
    snprintf(path, sizeof path, "%s/pids", disk);
    FILE *pids = fopen(path, "a");
    if (pids == NULL || fprintf(pids, "%d\n", getpid()) < 0 || fclose(pids) != 0) die(path);
    int listener = receive_fd(socket);
    for (int fd = 0; fd < 1024; fd++)
        if (fd != listener && fd != 2) close(fd); /* pipes and locks of COMMAND end with COMMAND */
    supervise(listener);
}

int main(int argc, char **argv) {
    if (argc < 4) { fprintf(stderr, "usage: keep_synced ROOT DISK COMMAND...\n"); return 2; }
    root = argv[1], disk = argv[2];
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) die("socketpair");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        if (fork() == 0) become_supervisor(pair[1]); /* not a child of COMMAND */
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    int listener = install_filter();
    if (listener < 0) die("seccomp listener");
    send_fd(pair[0], listener);
    close(listener), close(pair[0]), close(pair[1]);
    execvp(argv[3], argv + 3);
    die(argv[3]);
}
