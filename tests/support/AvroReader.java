import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.DecoderFactory;

/**
 * Reads records with Avro's own Java library: framed records in base64 on standard input, a line of JSON for each on
 * standard output. The argument is the URL of the registry API that gives a schema by its id.
 */
public class AvroReader {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        Map<Integer, Schema> schemas = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteBuffer framed = ByteBuffer.wrap(Base64.getDecoder().decode(line));
            if (framed.get() != 0) {
                throw new IllegalArgumentException("not framed");
            }
            int id = framed.getInt();
            if (!schemas.containsKey(id)) {
                URI place = URI.create(arguments[0] + "/schemas/ids/" + id + "/schema");
                HttpResponse<String> answer =
                    client.send(HttpRequest.newBuilder(place).build(), HttpResponse.BodyHandlers.ofString());
                schemas.put(id, new Schema.Parser().parse(answer.body()));
            }
            byte[] body = new byte[framed.remaining()];
            framed.get(body);
            GenericDatumReader<Object> reader = new GenericDatumReader<>(schemas.get(id));
            System.out.println(reader.read(null, DecoderFactory.get().binaryDecoder(body, null)));
        }
    }
}
