PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"@SLURM@; export PATH
command -v srun >/dev/null || { echo "no srun on $(hostname)" >&2; exit @NO_SRUN@; }
exec srun @OPTIONS@ sh -c @SHELL@ <"$0"
