#!/bin/sh
# Makes the passwords, keys and certificates of docker-compose.yml, each in the volume of the container that reads it.
# What is there stays. Safe to repeat: it then copies a key ring that was rotated, and renews the gateway's certificate.
set -eu
umask 077
volumes=${VOLUMES:-/volumes}
platform=10001 # the account in deploy/Dockerfile
temporal=1000  # the account in Temporal's images

as_platform() {
    state=$1
    shift
    GPU_PLATFORM_STATE_DIR=$volumes/$state setpriv --reuid=$platform --regid=$platform --clear-groups gpu-platform "$@"
}

give() { # FILE ACCOUNT: replaces FILE by stdin, for ACCOUNT only
    cat >"$1.new"
    [ -s "$1.new" ] || { echo "there is nothing to put into $1" >&2 && exit 1; }
    chown "$2:$2" "$1.new"
    mv "$1.new" "$1"
}

for name in superuser gpu_platform temporal; do
    [ -s "$volumes/passwords/$name" ] ||
        python -c 'import secrets; print(secrets.token_urlsafe(32), end="")' | give "$volumes/passwords/$name" 0
done
chmod 700 "$volumes/passwords"
give "$volumes/temporal/password" $temporal <"$volumes/passwords/temporal"
chown $temporal:$temporal "$volumes/temporal"
chmod 700 "$volumes/temporal"

for name in service control scheduler gateway; do
    mkdir -p "$volumes/$name/keys" "$volumes/$name/identity"
    printf '*:*:gpu_platform:gpu_platform:%s\n' "$(cat "$volumes/passwords/gpu_platform")" |
        give "$volumes/$name/pgpass" $platform
    chown $platform:$platform "$volumes/$name" "$volumes/$name/keys" "$volumes/$name/identity"
    chmod 700 "$volumes/$name"
done

[ -e "$volumes/service/identity/ca/ca.pem" ] || as_platform service ca init
as_platform control keys create
for name in service scheduler; do
    give "$volumes/$name/keys/ring.json" $platform <"$volumes/control/keys/ring.json"
done
as_platform control keys export gateway - | give "$volumes/gateway/keys/gateway.json" $platform
as_platform service ca show | give "$volumes/gateway/identity/ca.pem" $platform
as_platform service ca issue gateway | give "$volumes/gateway/identity/gateway.pem" $platform
