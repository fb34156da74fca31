/* See child.h. */
#include "client/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define RESTART_WAIT_FIRST_NS (100 * NS_PER_MS)
#define RESTART_WAIT_MAX_NS (2 * NS_PER_S)

static const struct {
    const char *flag, *file_flag, *suffix;
} address_kinds[CHILD_ADDRESS_COUNT] = {
    {"--grpc", "--grpc-file", "grpc"},
    {"--http", "--http-file", "http"},
    {"--node-grpc", "--node-grpc-file", "node-grpc"},
};

static bool has_address(const struct child *child, int kind)
{
    return kind != CHILD_NODE_GRPC || child->has_node_grpc;
}

static void path_of(const struct child *child, const char *suffix, char *path)
{
    snprintf(path, CHILD_PATH_BYTES, "%s/%s.%s", child->run_dir, child->name, suffix);
}

bool child_argument(struct child *child, const char *argument)
{
    if (child->argument_count == CHILD_ARGUMENTS_MAX)
        return false;
    child->arguments[child->argument_count++] = argument;
    return true;
}

/* --- a life's beginning --- */

/* Between fork and exec, in a process whose parent has threads: only calls that are safe in a signal handler. */
static void become(const char *program, char *const *argv, int log_fd, pid_t parent)
{
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127); /* the parent died before the line above */
    setpgid(0, 0);
    int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(log_fd, STDOUT_FILENO) < 0 ||
        dup2(log_fd, STDERR_FILENO) < 0)
        _exit(127);
    if (null_fd > STDERR_FILENO)
        close(null_fd);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(program, argv);
    static const char words[] = "baton up: the program cannot be started\n";
    ssize_t ignored = write(STDERR_FILENO, words, sizeof words - 1);
    (void)ignored;
    _exit(127);
}

static void write_pid(const struct child *child)
{
    char path[CHILD_PATH_BYTES], fresh[CHILD_PATH_BYTES + 4];
    path_of(child, "pid", path);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "we");
    if (!file)
        return; /* a full disk is no reason to stop serving */
    fprintf(file, "%d\n", (int)child->pid);
    if (fclose(file) == 0)
        rename(fresh, path);
}

enum status child_spawn(struct child *child, struct err *err)
{
    char paths[CHILD_ADDRESS_COUNT][CHILD_PATH_BYTES], log_path[CHILD_PATH_BYTES];
    char *argv[CHILD_ARGUMENTS_MAX + 4 * CHILD_ADDRESS_COUNT + 4];
    int argc = 0;
    argv[argc++] = child->program;
    argv[argc++] = (char *)"--name";
    argv[argc++] = child->name;
    for (int kind = 0; kind < CHILD_ADDRESS_COUNT; kind++) {
        if (!has_address(child, kind))
            continue;
        path_of(child, address_kinds[kind].suffix, paths[kind]);
        unlink(paths[kind]);
        argv[argc++] = (char *)address_kinds[kind].file_flag;
        argv[argc++] = paths[kind];
        if (child->addresses[kind][0]) {
            argv[argc++] = (char *)address_kinds[kind].flag;
            argv[argc++] = child->addresses[kind];
        }
    }
    for (int i = 0; i < child->argument_count; i++)
        argv[argc++] = (char *)child->arguments[i];
    argv[argc] = NULL;
    path_of(child, "log", log_path);
    int log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd < 0)
        return err_set(err, STATUS_IO, "%s: cannot be written: %s", log_path, strerror(errno));
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become(child->program, argv, log_fd, parent);
    int error = errno;
    close(log_fd);
    if (pid < 0)
        return err_set(err, STATUS_IO, "%s: cannot be started: %s", child->name, strerror(error));
    child->pid = pid;
    child->bound = false;
    child->state = CHILD_RUNNING;
    write_pid(child);
    return STATUS_OK;
}

void child_read_addresses(struct child *child)
{
    char bound[CHILD_ADDRESS_COUNT][CHILD_ADDRESS_BYTES];
    if (child->state != CHILD_RUNNING || child->bound)
        return;
    for (int kind = 0; kind < CHILD_ADDRESS_COUNT; kind++) {
        char path[CHILD_PATH_BYTES];
        if (!has_address(child, kind))
            continue;
        path_of(child, address_kinds[kind].suffix, path);
        FILE *file = fopen(path, "re");
        bool whole = file && fgets(bound[kind], sizeof bound[kind], file) && bound[kind][0] != '\n';
        if (file)
            fclose(file);
        if (!whole)
            return;
        bound[kind][strcspn(bound[kind], "\r\n")] = 0;
    }
    for (int kind = 0; kind < CHILD_ADDRESS_COUNT; kind++)
        if (has_address(child, kind))
            memcpy(child->addresses[kind], bound[kind], sizeof bound[kind]);
    child->bound = true;
}

/* --- its end --- */

/* Exit 1 or 2 is the program's own word that it cannot run here: model unreadable, port in use, wrong option. */
static bool refused_to_run(const struct child *child)
{
    return WIFEXITED(child->wait_status) &&
           (WEXITSTATUS(child->wait_status) == 1 || WEXITSTATUS(child->wait_status) == 2 ||
            WEXITSTATUS(child->wait_status) == 127);
}

bool child_reap(struct child *child, bool may_restart)
{
    if (child->state != CHILD_RUNNING && child->state != CHILD_STOPPING)
        return false;
    if (waitpid(child->pid, &child->wait_status, WNOHANG) != child->pid)
        return false;
    child->pid = 0;
    if (child->state == CHILD_STOPPING) {
        child->state = CHILD_STOPPED;
        return true;
    }
    uint64_t now_ns = clock_now_ns();
    int slot = child->death_count++ % CHILD_DEATHS_MAX;
    child->deaths_ns[slot] = now_ns;
    int recent = 0;
    for (int i = 0; i < CHILD_DEATHS_MAX; i++)
        recent += child->deaths_ns[i] && now_ns - child->deaths_ns[i] < CHILD_DEATHS_WINDOW_NS;
    if (recent == CHILD_DEATHS_MAX || (refused_to_run(child) && !may_restart)) {
        child->state = CHILD_FAILED;
        return true;
    }
    uint64_t wait_ns = RESTART_WAIT_FIRST_NS << (recent - 1);
    child->restart_ns = now_ns + (wait_ns < RESTART_WAIT_MAX_NS ? wait_ns : RESTART_WAIT_MAX_NS);
    child->state = CHILD_WAITING;
    return true;
}

void child_stop(struct child *child, int signal_number)
{
    if (child->state == CHILD_RUNNING || child->state == CHILD_STOPPING) {
        kill(child->pid, signal_number);
        child->state = CHILD_STOPPING;
    } else if (child->state != CHILD_FAILED) {
        child->state = CHILD_STOPPED;
    }
}

const char *child_death_text(const struct child *child, char *buffer, size_t buffer_bytes)
{
    if (WIFSIGNALED(child->wait_status))
        snprintf(buffer, buffer_bytes, "killed by signal %d (%s)", WTERMSIG(child->wait_status),
                 strsignal(WTERMSIG(child->wait_status)));
    else
        snprintf(buffer, buffer_bytes, "exit %d", WEXITSTATUS(child->wait_status));
    return buffer;
}

const char *child_last_line(const struct child *child, char *buffer, size_t buffer_bytes)
{
    char path[CHILD_PATH_BYTES], tail[4096];
    buffer[0] = 0;
    path_of(child, "log", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return buffer;
    off_t end = lseek(fd, 0, SEEK_END);
    off_t start = end > (off_t)sizeof tail - 1 ? end - ((off_t)sizeof tail - 1) : 0;
    ssize_t got = pread(fd, tail, sizeof tail - 1, start);
    close(fd);
    while (got > 0 && (tail[got - 1] == '\n' || tail[got - 1] == ' '))
        got--;
    if (got <= 0)
        return buffer;
    tail[got] = 0;
    const char *line = strrchr(tail, '\n');
    snprintf(buffer, buffer_bytes, "%s", line ? line + 1 : tail);
    return buffer;
}

void child_clean(struct child *child)
{
    char path[CHILD_PATH_BYTES];
    path_of(child, "pid", path);
    unlink(path);
    for (int kind = 0; kind < CHILD_ADDRESS_COUNT; kind++)
        if (has_address(child, kind)) {
            path_of(child, address_kinds[kind].suffix, path);
            unlink(path);
        }
}
