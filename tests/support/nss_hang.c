/* A name service (nsswitch.conf(5)) that knows one account, and does not answer while a file is there. */
#include <nss.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum nss_status _nss_hang_getpwnam_r(const char *name, struct passwd *out, char *room, size_t size, int *error)
{
    if (strcmp(name, "far") != 0)
        return NSS_STATUS_NOTFOUND;
    while (access(getenv("NSS_HANGS"), F_OK) == 0)
        sleep(1);
    strcpy(room, "far");
    out->pw_name = room;
    out->pw_passwd = out->pw_gecos = room + 3;
    out->pw_uid = out->pw_gid = 4242;
    out->pw_dir = out->pw_shell = "/";
    return NSS_STATUS_SUCCESS;
}
