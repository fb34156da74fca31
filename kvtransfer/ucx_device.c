/* See ucx_device.h. sysfs for RDMA, getifaddrs for the rest. */
#include "kvtransfer/ucx_device.h"

#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

/* The state of a port in sysfs, "4: ACTIVE"; false when there is no such file. */
static bool port_state(const char *device, const char *port, char *state, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%s/state", device, port);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool read = fgets(state, (int)bytes, file) != NULL;
    fclose(file);
    state[strcspn(state, "\n")] = '\0';
    return read;
}

bool ucx_device_rdma(const char *wanted, char *device_out, size_t device_bytes, char *why_out,
                     size_t why_bytes)
{
    snprintf(why_out, why_bytes, "no RDMA device on this host (/sys/class/infiniband)");
    DIR *devices = opendir("/sys/class/infiniband");
    if (!devices)
        return false;
    bool found = false;
    struct dirent *entry;
    while (!found && (entry = readdir(devices))) {
        size_t name_bytes = strcspn(wanted, ":");
        bool named = !if_nametoindex(wanted) && strcmp(wanted, "lo") != 0;
        if (entry->d_name[0] == '.' || (named && (strlen(entry->d_name) != name_bytes ||
                                                  strncmp(entry->d_name, wanted, name_bytes) != 0)))
            continue;
        const char *port = named && wanted[name_bytes] ? wanted + name_bytes + 1 : "1";
        char state[64] = "no such port";
        port_state(entry->d_name, port, state, sizeof state);
        found = strstr(state, "ACTIVE") != NULL;
        if (found)
            snprintf(device_out, device_bytes, "%.40s:%.8s", entry->d_name, port);
        else
            snprintf(why_out, why_bytes, "port %s of %.40s is not active (%s)", port, entry->d_name,
                     state);
    }
    closedir(devices);
    return found;
}

enum status ucx_device_interface(const char *name, struct err *err)
{
    if (!if_nametoindex(name))
        return err_set(err, STATUS_CONFIG, "kv_interface: no network device \"%s\"", name);
    struct ifaddrs *all;
    if (getifaddrs(&all))
        return err_set(err, STATUS_IO, "getifaddrs: %s", strerror(errno));
    bool up = false, addressed = false;
    for (struct ifaddrs *it = all; it; it = it->ifa_next) {
        if (strcmp(it->ifa_name, name) != 0)
            continue;
        up |= (it->ifa_flags & IFF_UP) != 0;
        addressed |= it->ifa_addr &&
                     (it->ifa_addr->sa_family == AF_INET || it->ifa_addr->sa_family == AF_INET6);
    }
    freeifaddrs(all);
    if (!up)
        return err_set(err, STATUS_CONFIG, "kv_interface: network device \"%s\" is down", name);
    if (!addressed)
        return err_set(err, STATUS_CONFIG, "kv_interface: network device \"%s\" has no address",
                       name);
    return STATUS_OK;
}

/* TCP on this network interface, or shared memory. */
static enum status choose_plain(enum xfer_transport transport, const char *interface,
                                struct ucx_choice *choice, struct err *err)
{
    bool shm = transport == XFER_TRANSPORT_SHM;
    choice->transport = transport;
    snprintf(choice->device, sizeof choice->device, "%s", shm ? "memory" : interface);
    return shm ? STATUS_OK : ucx_device_interface(interface, err);
}

enum status ucx_device_choose(enum xfer_transport wanted, const char *interface,
                              struct ucx_choice *choice, char *why_out, size_t why_bytes,
                              struct err *err)
{
    char why[256] = "the loopback has no RDMA";
    bool required = wanted == XFER_TRANSPORT_RDMA;
    if (!required && wanted != XFER_TRANSPORT_AUTO)
        return choose_plain(wanted, interface, choice, err);
    bool found = (required || strcmp(interface, "lo") != 0) &&
                 ucx_device_rdma(interface, choice->device, sizeof choice->device, why, sizeof why);
    if (why_bytes)
        snprintf(why_out, why_bytes, "%s", found ? "" : why);
    if (found) {
        choice->transport = XFER_TRANSPORT_RDMA;
        return STATUS_OK;
    }
    if (required)
        return err_set(err, STATUS_CONFIG, "transport: rdma is required, but %s", why);
    return choose_plain(XFER_TRANSPORT_TCP, interface, choice, err);
}
