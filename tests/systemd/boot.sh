# Makes a machine of its own out of new namespaces and becomes its systemd. Arguments: the folder that becomes its
# root, the binary, the folder of units. Nothing of this machine is there but /usr, read-only, and the network:
# no unit, no temporary file, no setting of the kernel can be touched from inside.
set -e
root=$1 binary=$2 units=$3
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$root"
cd "$root"
mkdir -p dev etc/muster etc/systemd/system home old opt/vllm/bin proc root run shared sys tmp usr var/lib var/tmp
chmod 1777 tmp var/tmp
for link in bin sbin lib lib64; do
    if [ -L "/$link" ]; then ln -s "usr/$link" "$link"; fi
done
mount --bind /usr usr
mount -o remount,bind,ro usr
mount -t tmpfs -o mode=755 none usr/local
mkdir usr/local/bin
cp "$binary" usr/local/bin/muster
if [ -e /etc/ld.so.cache ]; then cp /etc/ld.so.cache etc/; fi

mount -t tmpfs -o mode=755 none dev
for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
    set -- $node
    mknod -m 666 "dev/$1" c "$2" "$3"
done
mkdir dev/shm dev/pts dev/mqueue dev/hugepages
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=755 none run

for user in root:0 muster:901 vllm:902 nogroup:65534; do
    id=${user#*:} name=${user%:*}
    echo "$name:x:$id:$id::/nonexistent:/bin/sh" >>etc/passwd
    echo "$name:x:$id:" >>etc/group
done
echo 0123456789abcdef0123456789abcdef >etc/machine-id
echo 127.0.0.1 localhost >etc/hosts
echo hf_inthecredential >etc/muster/hf_token
chmod 600 etc/muster/hf_token
chown 901:901 shared
cat >opt/vllm/bin/vllm <<'SCRIPT'
#!/bin/sh
echo "$(id -un) $*" >>/run/vllm/launched
exec sleep infinity
SCRIPT
chmod 755 opt/vllm/bin/vllm
cp "$units"/*.service etc/systemd/system/
for unit in muster vllm vllm-pre; do
    mkdir "etc/systemd/system/$unit.service.d"
    # There is no journal here; and nobody waits for a minute.
    printf '[Service]\nStandardOutput=append:/run/%s.log\nStandardError=append:/run/%s.log\n' $unit $unit \
        >"etc/systemd/system/$unit.service.d/log.conf"
done
printf '[Service]\nWatchdogSec=3\nTimeoutAbortSec=1\nRestartSec=1\n' >etc/systemd/system/muster.service.d/quick.conf
printf '[Service]\nRestartSec=1\nRuntimeDirectory=vllm\nRuntimeDirectoryPreserve=yes\n' |
    tee etc/systemd/system/vllm.service.d/quick.conf >etc/systemd/system/vllm-pre.service.d/quick.conf
for target in basic sysinit multi-user shutdown; do
    printf '[Unit]\nDefaultDependencies=no\n' >"etc/systemd/system/$target.target"
done
ln -s multi-user.target etc/systemd/system/default.target

pivot_root . old
cd /
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro none sys
mount -t cgroup2 none sys/fs/cgroup
umount -l old
# As at the boot of a real machine: what systemd mounts for a service comes to the service.
mount --make-rshared /
exec env -i container=test PATH=/usr/local/bin:/usr/bin:/bin SYSTEMD_UNIT_PATH=/etc/systemd/system \
    /usr/lib/systemd/systemd --system --log-target=null
