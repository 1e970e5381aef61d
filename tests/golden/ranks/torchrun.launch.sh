#!/bin/sh
# torchrun with the node rank that the plan gives this host. Start it on every host:
#     sh launch.sh [OPTIONS OF TORCHRUN] SCRIPT [ARGUMENTS]
# Ranks meet at port MASTER_PORT of the first host, 29500 if it is not set.
set -euf

# one line for each host, in the order of the ranks
hosts='
gamma.rack-2.example
alpha
10.0.0.4
beta
'
addresses=$(hostname -I 2>/dev/null || ip -o addr show scope global | awk '{ sub("/.*", "", $4); print $4 }') || :
names="$(uname -n) $(hostname -f 2>/dev/null || :)"

is_here() { # whether $1 is a name or an address of this host
    for word in $names $addresses; do
        [ "$word" != "$1" ] || return 0
    done
    return 1
}

resolves_here() { # whether the name $1 stands for an address of this host
    for address in $(getent ahosts "$1" 2>/dev/null | awk '{ print $1 }'); do
        for word in $addresses; do
            [ "$word" != "$address" ] || return 0
        done
    done
    return 1
}

node_rank=
for test in is_here resolves_here; do
    place=0
    for host in $hosts; do
        if [ -z "$node_rank" ] && "$test" "$host"; then
            node_rank=$place
        fi
        place=$((place + 1))
    done
done
if [ -z "$node_rank" ]; then
    echo "launch.sh: $(uname -n) is none of the 4 hosts of the plan" >&2
    exit 2
fi

exec torchrun --nnodes 4 --node-rank "$node_rank" --nproc-per-node 2 \
    --master-addr 'gamma.rack-2.example' --master-port "${MASTER_PORT:-29500}" "$@"
