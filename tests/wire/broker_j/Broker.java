import java.util.Map;
import org.apache.qpid.server.SystemLauncher;

/** Starts a broker with the configuration in the file that the argument names. */
public class Broker {
    public static void main(String[] args) throws Exception {
        new SystemLauncher().startup(Map.of("type", "Memory", "initialConfigurationLocation", args[0]));
        System.out.println("ready");
    }
}
