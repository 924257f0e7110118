import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.hdfs.server.namenode.NameNodeAdapter;

/**
 * Name nodes and one data node of HDFS in one process, all on 127.0.0.1.
 *
 * In: FOLDER CONTROL_PORT NAME_NODE_PORT [NAME_NODE_PORT], then lines on the control port.
 * Out: to each line "ok", or the error. The control port is open when the cluster serves.
 */
public class HdfsCluster {
    private static MiniDFSCluster.DataNodeProperties stopped;

    public static void main(String[] args) throws Exception {
        File folder = new File(args[0]);
        Configuration conf = new Configuration();
        conf.set("hdfs.minidfs.basedir", folder.getPath());
        conf.set("dfs.blocksize", String.valueOf(8 << 20)); // a file of two parts has several blocks
        conf.set("dfs.ls.limit", "50"); // a listing has several pages
        conf.set("dfs.permissions.superusergroup", "nobody-else");
        conf.set("dfs.namenode.fs-limits.min-block-size", "1024");
        conf.set("dfs.namenode.edits.dir.minimum", "1");
        conf.set("dfs.datanode.hostname", "no-such-host.invalid"); // a client has to connect to the address
        MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(conf)
            .numDataNodes(1)
            .format(!new File(folder, "data").exists());
        if (args.length == 3) {
            builder.nameNodePort(Integer.parseInt(args[2]));
        } else {
            builder.nnTopology(new MiniDFSNNTopology().addNameservice(new MiniDFSNNTopology.NSConf("shop")
                .addNN(new MiniDFSNNTopology.NNConf("one").setIpcPort(Integer.parseInt(args[2])))
                .addNN(new MiniDFSNNTopology.NNConf("two").setIpcPort(Integer.parseInt(args[3])))));
        }
        try (MiniDFSCluster cluster = builder.build()) {
            if (args.length > 3) {
                cluster.transitionToActive(0);
            }
            cluster.waitActive();
            obey(cluster, Integer.parseInt(args[1]));
        }
    }

    private static void obey(MiniDFSCluster cluster, int port) throws Exception {
        try (ServerSocket server = new ServerSocket(port, 5, InetAddress.getLoopbackAddress())) {
            while (true) {
                try (Socket client = server.accept()) {
                    String line = new BufferedReader(
                        new InputStreamReader(client.getInputStream(), StandardCharsets.UTF_8)).readLine();
                    if (line != null) {
                        OutputStream answer = client.getOutputStream();
                        answer.write((done(cluster, line.split(" ")) + "\n").getBytes(StandardCharsets.UTF_8));
                    }
                }
            }
        }
    }

    private static String done(MiniDFSCluster cluster, String[] words) {
        try {
            switch (words[0]) {
                case "standby" -> cluster.transitionToStandby(Integer.parseInt(words[1]));
                case "active" -> cluster.transitionToActive(Integer.parseInt(words[1]));
                case "safe" -> NameNodeAdapter.enterSafeMode(cluster.getNameNode(), false);
                case "unsafe" -> NameNodeAdapter.leaveSafeMode(cluster.getNameNode());
                case "data-node" -> {
                    if (words[1].equals("stop")) {
                        stopped = cluster.stopDataNode(0);
                    } else {
                        cluster.restartDataNode(stopped, true);
                        cluster.waitActive();
                    }
                }
                default -> {
                    return "unknown";
                }
            }
            return "ok";
        } catch (Exception error) {
            return error.toString();
        }
    }
}
