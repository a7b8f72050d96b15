#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the parts of /sys and /proc that topology/ reads, from the descriptions in tests/data/topology (README.md there).

  make_machines.py OUT FILE.machine ...     makes OUT/NAME/sys and OUT/NAME/proc for each
"""
import pathlib
import shutil
import struct
import sys

CLASSES = {"bridge": "0x060400", "gpu": "0x030200", "nic": "0x020700", "nvswitch": "0x068000", "host": "0x060000"}
VENDORS = {"bridge": "0x10b5", "gpu": "0x10de", "nic": "0x15b3", "nvswitch": "0x10de", "host": "0x8086"}
DEVICES = {"bridge": "0x8749", "gpu": "0x2330", "nic": "0x1021", "nvswitch": "0x22a3", "host": "0x29c0"}
RATES = {"400": "400 Gb/sec (4X NDR)", "200": "200 Gb/sec (4X HDR)", "100": "100 Gb/sec (4X EDR)"}
GIDS = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}


class Machine:
    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.gpus = 0
        self.write("sys/class/dmi/id/.keep", "")
        for folder in ("sys/bus/pci/devices", "sys/class/net", "sys/devices/system/node"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def write(self, path: str, text: str | bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def link(self, path: str, target: str) -> None:
        """A relative link, as sysfs has them."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to("../" * (len(pathlib.Path(path).parts) - 1) + target)

    def cpu(self, words: list[str]) -> None:
        if words[0] == "arm64":
            self.write("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\n")
            return
        flags = "fpu sse2 " + " ".join(words[3:])
        self.write("proc/cpuinfo", f"processor\t: 0\nvendor_id\t: {words[0]}\ncpu family\t: {words[1]}\n"
                   f"model\t\t: {words[2]}\nmodel name\t: Example\nflags\t\t: {flags}\n")

    def numa(self, node: str, cpus: str) -> None:
        mask = 0
        for part in cpus.split(","):
            first, _, last = part.partition("-")
            for cpu in range(int(first), int(last or first) + 1):
                mask |= 1 << cpu
        digits = f"{mask:x}"
        digits = digits.zfill(-(-len(digits) // 8) * 8)
        self.write(f"sys/devices/system/node/node{node}/cpulist", cpus + "\n")
        self.write(f"sys/devices/system/node/node{node}/cpumap",
                   ",".join(digits[i:i + 8] for i in range(0, len(digits), 8)) + "\n")

    def device(self, kind: str, address: str, folder: str, attributes: dict[str, str], numa: str) -> None:
        def put(name: str, text: str) -> None:
            self.write(f"{folder}/{name}", text + "\n")

        put("class", CLASSES[kind])
        put("vendor", attributes.get("vendor", VENDORS[kind]))
        put("device", attributes.get("device", DEVICES[kind]))
        subsystem = attributes.get("subsystem", "0x0000:0x0000").split(":")
        put("subsystem_vendor", subsystem[0])
        put("subsystem_device", subsystem[1])
        put("numa_node", attributes.get("numa", numa))
        if attributes.get("link") != "none" and kind != "host":
            most = attributes.get("max", "32x16")
            for which, value in (("max", most), ("current", attributes.get("now", most))):
                speed, width = value.split("x")
                put(f"{which}_link_speed", f"{float(speed)} GT/s PCIe")
                put(f"{which}_link_width", width)
        if "acs" in attributes:
            put("config", "")
            config = bytearray(4096)
            config[0x100:0x104] = struct.pack("<I", 0x000D | 1 << 16)  # access control services, last capability
            config[0x106:0x108] = struct.pack("<H", int(attributes["acs"], 16))
            self.write(f"{folder}/config", bytes(config))
        self.link(f"sys/bus/pci/devices/{address}", folder)
        if kind == "gpu":
            self.gpu(address, attributes)
        if kind == "nic":
            self.nic(folder, attributes)

    def gpu(self, address: str, attributes: dict[str, str]) -> None:
        self.write(f"proc/driver/nvidia/gpus/{address}/information",
                   f"Model: \t\t Example GPU\nBus Location: \t {address}\nDevice Minor: \t {self.gpus}\n")
        for instance in range(int(attributes.get("mig", "0"))):
            self.write(f"proc/driver/nvidia/capabilities/gpu{self.gpus}/mig/gi{instance + 1}/access", "")
        self.gpus += 1

    def nic(self, folder: str, attributes: dict[str, str]) -> None:
        if name := attributes.get("rdma"):
            self.link(f"sys/class/infiniband/{name}", f"{folder}/infiniband/{name}")
            self.link(f"{folder}/infiniband/{name}/device", folder)
            for port in range(1, int(attributes.get("ports", "1")) + 1):
                where = f"{folder}/infiniband/{name}/ports/{port}"
                state = attributes.get("state", "ACTIVE")
                self.write(f"{where}/state", f"{1 if state == 'DOWN' else 4}: {state}\n")
                self.write(f"{where}/phys_state", f"5: {attributes.get('phys', 'LinkUp')}\n")
                self.write(f"{where}/rate", RATES[attributes.get("rate", "400")] + "\n")
                ethernet = attributes.get("layer") == "eth"
                self.write(f"{where}/link_layer", "Ethernet\n" if ethernet else "InfiniBand\n")
                if ethernet:
                    self.write(f"{where}/gid_attrs/types/0", GIDS["v1"] + "\n")
                    self.write(f"{where}/gid_attrs/types/1", GIDS[attributes["gid"]] + "\n")
                for counter in ("port_xmit_data", "port_rcv_data"):
                    self.write(f"{where}/counters/{counter}", "0\n")
        if name := attributes.get("net"):
            self.interface(name, f"{folder}/net/{name}", attributes.get("mbit", "400000"), attributes.get("oper", "up"))
            self.link(f"{folder}/net/{name}/device", folder)

    def interface(self, name: str, folder: str, mbit: str, state: str) -> None:
        self.write(f"{folder}/type", "32\n" if name.startswith("ib") else "1\n")
        self.write(f"{folder}/operstate", state + "\n")
        self.write(f"{folder}/speed", mbit + "\n")
        self.link(f"sys/class/net/{name}", folder)

    def bond(self, name: str, attributes: dict[str, str]) -> None:
        folder = f"sys/devices/virtual/net/{name}"
        self.interface(name, folder, attributes["mbit"], "up")
        self.write(f"{folder}/bonding/slaves", attributes["members"].replace(",", " ") + "\n")
        self.write("sys/class/net/bonding_masters", name + "\n")
        for member in attributes["members"].split(","):
            self.link(str((self.root / f"sys/class/net/{member}").resolve().relative_to(self.root.resolve())) + "/master",
                      folder)


def make(description: pathlib.Path, root: pathlib.Path) -> None:
    machine = Machine(root)
    above: list[tuple[int, str]] = []  # indentation and folder of what the next line may be below
    numa = "-1"
    for number, line in enumerate(description.read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        kind = words[0]
        indent = len(line) - len(line.lstrip())
        attributes = dict(w.split("=", 1) for w in words[1:] if "=" in w)
        if kind == "cpu":
            machine.cpu(words[1:])
        elif kind == "product":
            vendor, name = line.split(None, 1)[1].split("|")
            machine.write("sys/class/dmi/id/sys_vendor", vendor + "\n")
            machine.write("sys/class/dmi/id/product_name", name + "\n")
        elif kind == "numa":
            machine.numa(words[1], words[2])
        elif kind == "bus":
            numa = attributes.get("numa", "-1")
            platform = attributes.get("above", "")
            above = [(indent, "sys/devices/" + (platform + "/" if platform else "") + words[1])]
        elif kind == "bond":
            machine.bond(words[1], attributes)
        elif kind == "file":
            machine.write(words[1].lstrip("/"), line.split(None, 2)[2] + "\n")
        elif kind in CLASSES:
            while above and above[-1][0] >= indent:
                above.pop()
            if not above:
                sys.exit(f"{description}:{number}: {kind} below nothing")
            folder = f"{above[-1][1]}/{words[1]}"
            machine.device(kind, words[1], folder, attributes, numa)
            above.append((indent, folder))
        else:
            sys.exit(f"{description}:{number}: no such thing: {kind}")


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:]:
        description = pathlib.Path(name)
        root = out / description.stem
        if root.exists():
            shutil.rmtree(root)
        make(description, root)


if __name__ == "__main__":
    main()
